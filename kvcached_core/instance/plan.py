"""Geometry: from the byte sizes of all workers to pages of block ids.

A page is G consecutive block ids; on a worker it covers G times the bytes of a block in each of
that worker's tensors. G is one number for all workers, so that a page id means the same anywhere.

Memory comes in granules. Where a page is not whole granules it shares some with its neighbours:
what it needs then depends on who has memory already. All that must not be exceeded or must be kept
is reckoned with the most that it can need, ``page_bytes``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kvcached_core.config import Settings
from kvcached_core.vmm import HOST_GRANULARITY


@dataclass(frozen=True)
class Share:
    """What one rank pays for pages. Bytes."""

    device: str
    page_bytes: int
    """Of memory that one page needs at most."""
    own_bytes: int
    """That belong to one page."""
    floor: int
    limit: int


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
    granularity: int = HOST_GRANULARITY
    """Of the driver behind the tensors."""
    start: str = ""
    """Unique for each start of an engine whose ranks agree by transactions; none where one rank
    answers for itself."""
    shares: tuple[Share, ...] = ()
    """Of all ranks; none where they are alike."""

    @property
    def share(self) -> Share:
        """This rank's."""
        own = sum(self.extent_bytes)
        return Share(self.device, self.page_bytes, own, self.floor, self.limit)

    @property
    def all_shares(self) -> tuple[Share, ...]:
        """By rank."""
        return self.shares or (self.share,) * self.num_ranks

    @property
    def num_pages(self) -> int:
        return -(-self.num_blocks // self.blocks_per_page)

    @cached_property
    def page_bytes(self) -> int:
        """Bytes of memory that one page needs at most, over all tensors of this worker."""
        return page_memory(self.extent_bytes, self.granularity)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of addresses that the pages cover."""
        return self.num_pages * sum(self.extent_bytes)

    @property
    def extent_bytes(self) -> tuple[int, ...]:
        """Bytes of one page in each tensor."""
        return tuple(self.blocks_per_page * size for size in self.block_bytes)


def page_memory(extent_bytes: Iterable[int], granularity: int) -> int:
    """Bytes of all granules that a page can touch, given its bytes in each tensor.

    A page begins up to ``granularity - gcd(extent, granularity)`` bytes into a granule. For whole
    granules it is the page itself. (csrc/vmm/page_spans.h reckons the same.)
    """
    total = 0
    for extent in extent_bytes:
        start = granularity - math.gcd(extent, granularity)
        total += -(-(start + extent) // granularity) * granularity
    return total


def choose_blocks_per_page(
    block_bytes_by_rank: Sequence[Sequence[int]], page_size: int, granularity: int
) -> int:
    """The smallest G that fills `page_size` on the worker with the largest blocks, or the next one
    whose extents are whole granules in every tensor of every worker.

    Whole granules are preferred as long as such a page takes, on every worker, at most twice the
    memory that the smaller one can need with the granules at its ends; beyond that pages share
    granules.
    """
    step = 1
    for sizes in block_bytes_by_rank:
        for size in sizes:
            step = math.lcm(step, granularity // math.gcd(size, granularity))
    largest = max(sum(sizes) for sizes in block_bytes_by_rank)
    smallest = max(1, -(-page_size // largest))
    whole = -(-smallest // step) * step
    if all(
        whole * sum(sizes) <= 2 * page_memory([smallest * size for size in sizes], granularity)
        for sizes in block_bytes_by_rank
    ):
        return whole
    return smallest
