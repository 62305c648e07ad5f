"""Models some of whose layers see only a sliding window: a pool for those and one for the others.

Both lie in one arena, in the order in which they ask for tensors. A page takes as many bytes in
either, so that memory which one pool gives up is of use to the other; limit, floor and account are
one for both.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvcached_core.engines.sglang.geometry import Geometry, Pages
from kvcached_core.engines.sglang.padding import Padding
from kvcached_core.engines.sglang.tensors import (
    Region,
    Tensors,
    check_device,
    not_all_of,
    parts_of_token,
)
from kvcached_core.instance.plan import choose_blocks_per_page
from kvcached_core.vmm import Arena, Driver

WINDOWS, FULL = 0, 1


@dataclass(frozen=True)
class Windows:
    """What a request holds of its windows' slots. Tokens."""

    least: int
    """The scheduler wants so many free before it admits the shortest request."""
    most: int | None
    """One that runs alone holds no more, however long it is; None where prompts are not cut."""


@dataclass(frozen=True)
class WindowPages(Pages):
    windows: Geometry
    full: Geometry
    held: Windows
    order: tuple[int, ...]

    @property
    def placed(self) -> tuple[int, ...]:
        return self.order

    @property
    def granularity(self) -> int:  # type: ignore[override]
        return self.full.granularity

    @property
    def pools(self) -> tuple[Geometry, ...]:
        return self.windows, self.full

    @property
    def extent_bytes(self) -> tuple[int, ...]:
        return self.full.extent_bytes

    def pages_of_request(self, tokens: int) -> tuple[int, ...]:
        most = tokens if self.held.most is None else min(tokens, self.held.most)
        windows = self.windows.pages_of_request(max(most, self.held.least))
        return *windows, *self.full.pages_of_request(tokens)

    def tokens_of_request(self, pages: int) -> int:
        lengths = range(self.full.num_blocks * self.full.block_tokens)
        return bisect.bisect(lengths, pages, key=lambda n: sum(self.pages_of_request(n))) - 1


class WindowTensors(Tensors):
    """Tensors of both pools, which ask one after the other; which is which shows when that of full
    attention gets its allocator, which is made first."""

    is_block_major = True

    def __init__(
        self,
        driver: Driver,
        page_size: int,
        granularity: int,
        addresses: int,
        held: Windows,
    ) -> None:
        """`addresses`: bytes that all slots take at most; more are reserved, since what rounding to
        pages costs is known only when the second pool asks."""
        self._page_size = page_size
        self._granularity = granularity
        self._held = held
        self._regions: list[Region] = []  # in the order in which they were asked for
        self._full: Any = None
        self._page_bytes = 0
        self.padding = Padding(driver, granularity)
        self._arena = Arena.reserve(driver, 2 * addresses + 64 * max(page_size, granularity))

    @property
    def arenas(self) -> list[Arena]:
        return [self._arena]

    def new(
        self, owner: Any, shape: Sequence[int], dtype: torch.dtype, device: str, tokens_per_row: int
    ) -> torch.Tensor:
        if self.closed or (len(self._regions) == 2 and self._place_of(owner) < 0):
            raise RuntimeError(
                f"{type(owner).__name__} asks for a KV tensor: only two pools are served, that of "
                "sliding windows and that of full attention"
            )
        if self._place_of(owner) < 0:
            self._regions.append(self._begin(owner, shape[0]))
        tensor = self._regions[self._place_of(owner)].next(shape, dtype)
        check_device(tensor, device)
        return tensor

    def index_of(self, owner: Any) -> int:
        return FULL if owner is self._full else WINDOWS

    def _place_of(self, owner: Any) -> int:
        """-1 for a pool that has not asked yet."""
        owners = [region.owner for region in self._regions]
        return next((at for at, other in enumerate(owners) if other is owner), -1)

    def _begin(self, owner: Any, rows: int) -> Region:
        parts = parts_of_token(owner)
        if not parts:
            raise RuntimeError(
                f"--kv-storage-backend=kvcached does not serve this model's sliding windows: the "
                f"tensors of {type(owner).__name__} cannot lie together. Use "
                "--disable-hybrid-swa-memory or --kv-storage-backend=static."
            )
        base, size = 0, sum(parts) * int(owner.page_size)
        if self._regions:
            self._page_bytes = self._size_pages(self._regions[0].block_bytes, size)
            base = self._page_bytes * self._geometry(self._regions[0]).num_pages
        self.padding.add(self._arena, base, size)
        return Region(owner, self._arena, base, rows, parts)

    def _size_pages(self, *block_bytes: int) -> int:
        """Bytes of a page, whole blocks of both pools."""
        step = math.lcm(*block_bytes)
        return step * choose_blocks_per_page([[step]], self._page_size, self._granularity)

    def _geometry(self, region: Region) -> Geometry:
        size = region.block_bytes
        tokens = int(region.owner.page_size)
        per_page = self._page_bytes // size
        return Geometry(tokens, region.num_blocks, per_page, (size,), self._granularity)

    def pages(self, owner: Any, num_blocks: int, block_tokens: int) -> WindowPages:
        complete = [region.is_complete for region in self._regions]
        at = self._place_of(owner)
        if at < 0 or complete != [True, True]:
            raise not_all_of(owner)
        self.closed, self._full = True, owner
        full, windows = (self._geometry(self._regions[place]) for place in (at, 1 - at))
        placed = (WINDOWS, FULL) if at == 1 else (FULL, WINDOWS)
        made = WindowPages(windows, full, self._held, placed)
        assert made.full.num_blocks == num_blocks
        assert made.full.block_tokens == block_tokens
        assert made.num_pages * self._page_bytes <= self._arena.size
        return made
