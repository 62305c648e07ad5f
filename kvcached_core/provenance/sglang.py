"""SGLang's distributions. A module apart, since it runs where SGLang may be any build of it."""

from __future__ import annotations

from functools import cache

from .build import build_of, describe
from .installed import MixedInstall, check_alone, overwritten

# All that own the folder `sglang`: the release that we fork, and our fork of it.
OWNERS = ("kvcached-sglang", "sglang")
_STAMP = "sglang.srt.mem_cache.kv_storage._series"


def check() -> None:
    """Ends the process (SystemExit, with the text of MixedInstall) if two of OWNERS are installed
    over each other.

    SGLang calls it before it reads its command line and at the start of each scheduler (entry point
    of `sglang.srt.plugins`), also where upstream's files won and our options do not exist. It only
    logs a plugin's exceptions and goes on.
    """
    try:
        check_alone("sglang", OWNERS)
    except MixedInstall as error:
        raise SystemExit(f"kvcached: {error}") from None


@cache
def provenance() -> str:
    """Upstream's version, the fork's, and the series, for the start line."""
    build = build_of(_STAMP)
    return describe("sglang", build, overwritten("sglang", build.distribution) if build else [])
