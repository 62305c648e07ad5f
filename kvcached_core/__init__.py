"""Elastic KV-cache memory for LLM serving: physical pages come and go under stable addresses."""

__version__ = "0.1.0"
