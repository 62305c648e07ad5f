"""Pinned upstream releases: the pin, its wheel, and the tree made from it."""

from .command import add_engine, command_line, report, run
from .errors import Refusal
from .fetch import check_wheel, obtain_wheel, sha256_of
from .git import Git, GitError
from .layout import Layout, engines, is_version
from .pin import Pin, Variant, find_layout, load_pin, parse_pin, pin_versions
from .tree import (
    PRISTINE,
    blob_id,
    blobs,
    commit_release,
    is_compiled,
    materialise,
    open_tree,
    stamp,
    uncommitted,
    verify,
)

__all__ = [
    "PRISTINE",
    "Git",
    "GitError",
    "Layout",
    "Pin",
    "Refusal",
    "Variant",
    "add_engine",
    "blob_id",
    "blobs",
    "check_wheel",
    "command_line",
    "commit_release",
    "engines",
    "find_layout",
    "is_compiled",
    "is_version",
    "load_pin",
    "materialise",
    "obtain_wheel",
    "open_tree",
    "parse_pin",
    "pin_versions",
    "report",
    "run",
    "sha256_of",
    "stamp",
    "uncommitted",
    "verify",
]
