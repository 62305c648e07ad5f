"""The tensors of one pool: addresses at first, memory page by page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvcached_core.engines.sglang.geometry import Geometry, blocks_per_page, slack_bytes
from kvcached_core.vmm import Arena, Driver

# Kernels read rows in vectors of this size.
_ALIGNMENT = 16


@dataclass(frozen=True)
class _Buffer:
    """One arena, with a row of `row_bytes` for every `tokens_per_row` tokens."""

    arena: Arena
    row_bytes: int
    tokens_per_row: int

    def block_bytes(self, block_tokens: int) -> int:
        return self.row_bytes * block_tokens // self.tokens_per_row


class PoolTensors:
    """One arena a tensor; or, block-major, one for all of them, in which all that layers keep of a
    token lies together. A page of it needs one mapping, whatever the number of layers."""

    def __init__(
        self, driver: Driver, page_size: int, granularity: int, *, block_major: bool
    ) -> None:
        self._driver = driver
        self._page_size = page_size
        self._granularity = granularity
        self._block_major = block_major
        self._owner: Any = None
        self._buffers: list[_Buffer] = []
        self._parts: tuple[int, ...] = ()  # bytes of a token in each tensor, if block-major
        self._made = 0
        self.closed = False
        """The pool has its allocator: no tensor comes any more."""

    @property
    def arenas(self) -> list[Arena]:
        return [buffer.arena for buffer in self._buffers]

    @property
    def is_block_major(self) -> bool:
        return bool(self._parts)

    def new(
        self, owner: Any, shape: Sequence[int], dtype: torch.dtype, device: str, tokens_per_row: int
    ) -> torch.Tensor:
        """The next tensor of `owner`. Raises RuntimeError for a second pool."""
        if self.closed or (self._owner is not None and self._owner is not owner):
            raise RuntimeError(
                f"{type(owner).__name__} asks for a KV tensor: only one pool is served, the first"
            )
        if self._owner is None:
            self._owner = owner
            self._parts = _parts_of_token(owner) if self._block_major else ()
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        if self._parts:
            tensor = self._next_part(shape, dtype, row_bytes)
        else:
            size = shape[0] * row_bytes
            arena = self._reserve(shape[0], row_bytes, tokens_per_row)
            tensor = torch.from_dlpack(arena.tensor(0, size)).view(dtype).view(*shape)
        if tensor.device.type != torch.device(device).type:
            raise RuntimeError(f"a KV tensor lies on {tensor.device}, the pool is on {device}")
        self._made += 1
        return tensor

    def _reserve(self, rows: int, row_bytes: int, tokens_per_row: int) -> Arena:
        block_bytes = row_bytes * (self._owner.page_size // tokens_per_row)
        slack = slack_bytes(block_bytes, self._page_size, self._granularity)
        arena = Arena.reserve(self._driver, rows * row_bytes + slack)
        self._buffers.append(_Buffer(arena, row_bytes, tokens_per_row))
        return arena

    def _next_part(self, shape: Sequence[int], dtype: torch.dtype, row_bytes: int) -> torch.Tensor:
        if self._made >= len(self._parts) or row_bytes != self._parts[self._made]:
            raise RuntimeError(
                f"KV tensor {self._made} of {type(self._owner).__name__} has {row_bytes} bytes a "
                f"token, expected were {self._parts}"
            )
        whole = sum(self._parts)
        if not self._buffers:
            self._reserve(shape[0], whole, 1)
        memory = torch.from_dlpack(self._buffers[0].arena.tensor(0, shape[0] * whole)).view(dtype)
        inner = [math.prod(shape[at + 1 :]) for at in range(1, len(shape))]
        offset = sum(self._parts[: self._made]) // dtype.itemsize
        return memory.as_strided(tuple(shape), (whole // dtype.itemsize, *inner), offset)

    def geometry(self, owner: Any, num_blocks: int, block_tokens: int) -> Geometry:
        """The pages of the pool `owner`, whose tensors must be all that were made."""
        complete = not self._parts or self._made == len(self._parts)
        if self._owner is not owner or not self._buffers or not complete:
            raise RuntimeError(
                f"--kv-storage-backend=kvcached: the KV tensors of {type(owner).__name__} are not "
                "all from it; use --kv-storage-backend=static"
            )
        self.closed = True
        sizes = [buffer.block_bytes(block_tokens) for buffer in self._buffers]
        room = [
            arena.size - num_blocks * size for arena, size in zip(self.arenas, sizes, strict=True)
        ]
        per_page = blocks_per_page(sizes, self._page_size, self._granularity, room)
        return Geometry(block_tokens, num_blocks, per_page, tuple(sizes), self._granularity)


def _parts_of_token(pool: Any) -> tuple[int, ...]:
    """Bytes of a token in each tensor of `pool`, in the order in which it asks for them; empty for
    a pool whose tensors must be contiguous."""
    if type(pool).__name__ != "MHATokenToKVPool" or pool.kv_cache_layout != "nhd":
        return ()
    item = pool.store_dtype.itemsize
    key, value = (pool.head_num * size * item for size in (pool.head_dim, pool.v_head_dim))
    parts = (key,) * pool.layer_num + (value,) * pool.layer_num
    return () if any(part % _ALIGNMENT for part in parts) else parts
