"""Stands in, in tests, for SGLang's kernel package, which is for GPUs.

SGLang 0.5.20 imports names of it on a CPU as well, and calls them to draft and to move slots.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def kernel(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{name} is a kernel, and there are none here")

    return kernel
