"""Geometry: from the byte sizes of all workers to pages of block ids.

A page is G consecutive block ids; on a worker it covers G times the bytes of a block in each of
that worker's tensors. G is one number for all workers, so that a page id means the same anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcached_core.config import Settings, format_size


@dataclass(frozen=True)
class StoragePlan:
    """What the engine core planned for one worker; travels with its KVCacheConfig. Bytes."""

    settings: Settings
    instance: str
    rank: int
    num_ranks: int
    device: str
    budget_dir: Path
    capacity: int
    segment: Path
    num_blocks: int
    blocks_per_page: int
    block_bytes: tuple[int, ...]
    """Bytes of one block in each tensor of this worker, in the order of allocation."""
    floor: int
    limit: int

    @property
    def num_pages(self) -> int:
        return -(-self.num_blocks // self.blocks_per_page)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all tensors of this worker."""
        return self.blocks_per_page * sum(self.block_bytes)

    @property
    def extent_bytes(self) -> tuple[int, ...]:
        """Bytes of one page in each tensor; whole granules."""
        return tuple(self.blocks_per_page * size for size in self.block_bytes)


def choose_blocks_per_page(
    block_bytes_by_rank: Sequence[Sequence[int]], page_size: int, granularity: int
) -> int:
    """Smallest G that fills `page_size` on the worker with the largest blocks and whose extents are
    whole granules in every tensor of every worker."""
    step = 1
    for sizes in block_bytes_by_rank:
        for size in sizes:
            step = math.lcm(step, granularity // math.gcd(size, granularity))
    largest = max(sum(sizes) for sizes in block_bytes_by_rank)
    wanted = max(1, -(-page_size // largest))
    return -(-wanted // step) * step


def pages_for_blocks(num_blocks: int, blocks_per_page: int) -> int:
    """Pages that `num_blocks` blocks and the null block need at most, alone in an empty pool."""
    return -(-(num_blocks + 1) // blocks_per_page)


def check_room(need: int, capacity: int, limit: int, headroom: int, max_model_len: int) -> None:
    """Raises ValueError with both numbers if one request of the greatest length cannot fit."""
    room = min(limit, capacity - headroom)
    if need <= room:
        return
    key = "limit" if limit < capacity - headroom else "capacity"
    raise ValueError(
        f"--kv-storage-config: one request of max_model_len {max_model_len} needs "
        f"{format_size(need)} of KV cache (whole pages, null block included), but {key} leaves "
        f"{format_size(room)}. Raise {key} to {format_size(need)} or more, or lower "
        f"--max-model-len."
    )
