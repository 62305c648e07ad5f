"""The tensors of pools: addresses at first, memory page by page."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvcached_core.engines.sglang.geometry import Geometry, Pages, blocks_per_page, slack_bytes
from kvcached_core.engines.sglang.padding import Padding
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


class Region:
    """The tensors of one pool, from `base` of an arena on: all that layers keep of a token lies
    together."""

    def __init__(
        self, owner: Any, arena: Arena, base: int, rows: int, parts: Sequence[int]
    ) -> None:
        """`parts`: bytes of a token in each tensor, in the order in which they are asked for."""
        self.owner = owner
        self.rows = rows
        self._arena = arena
        self._base = base
        self._parts = parts
        self._made = 0

    @property
    def block_bytes(self) -> int:
        return sum(self._parts) * int(self.owner.page_size)

    @property
    def num_blocks(self) -> int:
        return self.rows // int(self.owner.page_size)

    @property
    def is_complete(self) -> bool:
        return self._made == len(self._parts)

    def next(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The next tensor. Raises RuntimeError where it is not what was expected."""
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        expected = (self.rows, self._parts[self._made]) if not self.is_complete else None
        if expected != (shape[0], row_bytes):
            raise RuntimeError(
                f"KV tensor {self._made} of {type(self.owner).__name__} has {shape[0]} rows of "
                f"{row_bytes} bytes a token, expected were {self.rows} of {self._parts}"
            )
        whole = sum(self._parts)
        inner = [math.prod(shape[at + 1 :]) for at in range(1, len(shape))]
        offset = sum(self._parts[: self._made]) // dtype.itemsize
        self._made += 1
        memory = torch.from_dlpack(self._arena.tensor(self._base, self.rows * whole)).view(dtype)
        return memory.as_strided(tuple(shape), (whole // dtype.itemsize, *inner), offset)


class Tensors(ABC):
    """Where the KV tensors of an engine lie. Padding's slots have memory at once."""

    closed = False
    """The pool has its allocator: no tensor comes any more."""
    padding: Padding
    """Until pages are known."""

    @property
    @abstractmethod
    def arenas(self) -> list[Arena]: ...

    @property
    @abstractmethod
    def is_block_major(self) -> bool: ...

    @abstractmethod
    def new(
        self, owner: Any, shape: Sequence[int], dtype: torch.dtype, device: str, tokens_per_row: int
    ) -> torch.Tensor:
        """The next tensor of `owner`. Raises RuntimeError for a pool too many."""

    @abstractmethod
    def pages(self, owner: Any, num_blocks: int, block_tokens: int) -> Pages:
        """The pages of all pools, of which `owner` gets its allocator; no more tensors come. Raises
        RuntimeError where those that were made are not all of the pools'."""

    @abstractmethod
    def index_of(self, owner: Any) -> int:
        """Which of `Pages.pools` the pool is, once they are known."""


class PoolTensors(Tensors):
    """Of one pool: one arena a tensor; or, block-major, one for all of them. A page of that needs
    one mapping, whatever the number of layers."""

    def __init__(
        self, driver: Driver, page_size: int, granularity: int, *, block_major: bool
    ) -> None:
        self._driver = driver
        self._page_size = page_size
        self._granularity = granularity
        self._block_major = block_major
        self._owner: Any = None
        self._buffers: list[_Buffer] = []
        self._region: Region | None = None
        self.padding = Padding(driver, granularity)

    @property
    def arenas(self) -> list[Arena]:
        return [buffer.arena for buffer in self._buffers]

    @property
    def is_block_major(self) -> bool:
        return self._region is not None

    def new(
        self, owner: Any, shape: Sequence[int], dtype: torch.dtype, device: str, tokens_per_row: int
    ) -> torch.Tensor:
        if self.closed or (self._owner is not None and self._owner is not owner):
            raise RuntimeError(
                f"{type(owner).__name__} asks for a KV tensor: only one pool is served, the first"
            )
        if self._owner is None:
            self._owner = owner
            parts = parts_of_token(owner) if self._block_major else ()
            if parts:
                arena = self._reserve(shape[0], sum(parts), 1)
                self._region = Region(owner, arena, 0, shape[0], parts)
        if self._region is not None:
            tensor = self._region.next(shape, dtype)
        else:
            row_bytes = math.prod(shape[1:]) * dtype.itemsize
            arena = self._reserve(shape[0], row_bytes, tokens_per_row)
            whole = arena.tensor(0, shape[0] * row_bytes)
            tensor = torch.from_dlpack(whole).view(dtype).view(*shape)
        check_device(tensor, device)
        return tensor

    def _reserve(self, rows: int, row_bytes: int, tokens_per_row: int) -> Arena:
        block_bytes = row_bytes * (self._owner.page_size // tokens_per_row)
        slack = slack_bytes(block_bytes, self._page_size, self._granularity)
        arena = Arena.reserve(self._driver, rows * row_bytes + slack)
        self.padding.add(arena, 0, block_bytes)
        self._buffers.append(_Buffer(arena, row_bytes, tokens_per_row))
        return arena

    def pages(self, owner: Any, num_blocks: int, block_tokens: int) -> Pages:
        complete = self._region is None or self._region.is_complete
        if self._owner is not owner or not self._buffers or not complete:
            raise not_all_of(owner)
        self.closed = True
        sizes = [buffer.block_bytes(block_tokens) for buffer in self._buffers]
        room = [
            arena.size - num_blocks * size for arena, size in zip(self.arenas, sizes, strict=True)
        ]
        per_page = blocks_per_page(sizes, self._page_size, self._granularity, room)
        return Geometry(block_tokens, num_blocks, per_page, tuple(sizes), self._granularity)

    def index_of(self, owner: Any) -> int:
        return 0


def not_all_of(owner: Any) -> RuntimeError:
    return RuntimeError(
        f"--kv-storage-backend=kvcached: the KV tensors of {type(owner).__name__} are not "
        "all from it; use --kv-storage-backend=static"
    )


def check_device(tensor: torch.Tensor, device: str) -> None:
    """Raises RuntimeError for a tensor elsewhere."""
    if tensor.device.type != torch.device(device).type:
        raise RuntimeError(f"a KV tensor lies on {tensor.device}, the pool is on {device}")


def parts_of_token(pool: Any) -> tuple[int, ...]:
    """Bytes of a token in each tensor of `pool`, in the order in which it asks for them; empty for
    a pool whose tensors must be contiguous."""
    if type(pool).__name__ != "MHATokenToKVPool" or pool.kv_cache_layout != "nhd":
        return ()
    item = pool.store_dtype.itemsize
    key, value = (pool.head_num * size * item for size in (pool.head_dim, pool.v_head_dim))
    parts = (key,) * pool.layer_num + (value,) * pool.layer_num
    return () if any(part % _ALIGNMENT for part in parts) else parts
