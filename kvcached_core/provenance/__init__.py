"""What the running fork was built from, and whether another package lies over it.

Reads files of metadata only: no engine is imported but the stamp of the fork, no device is touched.
"""

from .build import Build, build_of, describe
from .installed import MixedInstall, OtherInterface, check_alone, check_interface, overwritten

__all__ = [
    "Build",
    "MixedInstall",
    "OtherInterface",
    "build_of",
    "check_alone",
    "check_interface",
    "describe",
    "overwritten",
]
