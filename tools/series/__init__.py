"""Patch series: patch files and commits, each made from the other byte for byte."""

from .apply import apply, build_commits, unexported
from .budget import Cost, costs, table
from .check import Report, check
from .export import export, patches_of
from .identity import SHORT, series_hash
from .patch import FileChange, Patch, changes, file_name, normalise_message, parse
from .scratch import read_blobs, scratch_repository
from .show import show
from .store import read_files, read_names, read_series, render, where, write
from .variants import check_same_base

__all__ = [
    "SHORT",
    "Cost",
    "FileChange",
    "Patch",
    "Report",
    "apply",
    "build_commits",
    "changes",
    "check",
    "check_same_base",
    "costs",
    "export",
    "file_name",
    "normalise_message",
    "parse",
    "patches_of",
    "read_blobs",
    "read_files",
    "read_names",
    "read_series",
    "render",
    "scratch_repository",
    "series_hash",
    "show",
    "table",
    "unexported",
    "where",
    "write",
]
