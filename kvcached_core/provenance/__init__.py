"""What the running fork was built from, and whether another package lies over it.

Reads files of metadata only: no engine is imported but the stamp of the fork, no device is touched.
"""

from .build import Build, build_of, describe
from .installed import MixedInstall, check_alone, overwritten

__all__ = ["Build", "MixedInstall", "build_of", "check_alone", "describe", "overwritten"]
