"""Upstream's wheel repacked as ours."""

from .metadata import Identity, identity, metadata, our_version, wheel_file
from .notice import LINE, mark, notice
from .overlay import Overlay, overlay, rename_lookups
from .wheel import build

__all__ = [
    "LINE",
    "Identity",
    "Overlay",
    "build",
    "identity",
    "mark",
    "metadata",
    "notice",
    "our_version",
    "overlay",
    "rename_lookups",
    "wheel_file",
]
