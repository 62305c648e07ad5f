"""Adapters: one package an engine, thin, in the engine's own words."""
