"""Stands in, in tests, for SGLang's kernel package, which is for GPUs.

SGLang 0.5.20 imports this name on a CPU as well, and calls it only to move slots of a cache.
"""

from __future__ import annotations

from typing import Any


def copy_all_layer_kv_cache_cpu(*args: Any) -> None:
    raise NotImplementedError("no kernels here: copy_all_layer_kv_cache_cpu is for real ones")
