"""SGLang's distributions. A module apart, since it runs where SGLang may be any build of it."""

from __future__ import annotations

from functools import cache

from .build import build_of, describe
from .installed import MixedInstall, OtherInterface, check_alone, check_interface, overwritten

# All that own the folder `sglang`: the release that we fork, and our fork of it.
OWNERS = ("kvcached-sglang", "sglang")
# The version of SGLang's storage interface, `interface` of a pin, that our backend speaks.
INTERFACE = 1
_STAMP = "sglang.srt.mem_cache.kv_storage._series"


def check() -> None:
    """Ends the process (SystemExit, with the text of the error) if two of OWNERS are installed over
    each other, or the fork does not speak INTERFACE.

    SGLang calls it before it reads its command line and at the start of each scheduler (entry point
    of `sglang.srt.plugins`), also where upstream's files won and our options do not exist. It only
    logs a plugin's exceptions and goes on.
    """
    try:
        check_alone("sglang", OWNERS)
        check_interface("sglang", "sglang", OWNERS, INTERFACE)
    except (MixedInstall, OtherInterface) as error:
        raise SystemExit(f"kvcached: {error}") from None


@cache
def provenance() -> str:
    """Upstream's version, the fork's, and the series, for the start line."""
    build = build_of(_STAMP)
    return describe("sglang", build, overwritten("sglang", build.distribution) if build else [])
