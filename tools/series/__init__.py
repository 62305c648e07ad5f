"""Patch series: patch files and commits, each made from the other byte for byte."""
