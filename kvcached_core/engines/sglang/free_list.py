"""Free blocks by page, on the device that their list is on.

Nothing here waits for the device or looks at single blocks from the host: it knows how many there
are, and of each page how many ids it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


class PageMap:
    """Which page a block is in. Lists of blocks are int64 tensors of one dimension on `device`."""

    def __init__(self, num_blocks: int, blocks_per_page: int, device: str) -> None:
        self.num_blocks = num_blocks
        self.blocks_per_page = blocks_per_page
        self.num_pages = -(-num_blocks // blocks_per_page)
        self._device = device
        sizes = torch.full((self.num_pages,), blocks_per_page, dtype=torch.int32)
        sizes[-1] = num_blocks - (self.num_pages - 1) * blocks_per_page
        sizes[0] -= 1  # block 0 is nobody's
        self._sizes = sizes
        # What a page lacks to a whole one, so that all whole ones sort alike.
        self._lacking = (blocks_per_page - sizes).to(device)

    def size(self, pages: Sequence[int]) -> int:
        """Blocks of these pages that can be handed out."""
        per_page = self.blocks_per_page
        blocks = len(pages) * per_page
        if 0 in pages:
            blocks -= 1
        if self.num_pages - 1 in pages:
            blocks -= self.num_pages * per_page - self.num_blocks
        return blocks

    def blocks(self, pages: Sequence[int]) -> torch.Tensor:
        """All blocks of these pages that can be handed out."""
        per_page = self.blocks_per_page
        parts = [
            torch.arange(
                max(1, first * per_page),
                min(end * per_page, self.num_blocks),
                dtype=torch.int64,
                device=self._device,
            )
            for first, end in _runs(pages)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def none(self) -> torch.Tensor:
        return torch.empty((0,), dtype=torch.int64, device=self._device)

    def counts(self, blocks: torch.Tensor) -> torch.Tensor:
        """int32 [num_pages]: how many of `blocks` each page has."""
        counts = torch.zeros(self.num_pages, dtype=torch.int32, device=self._device)
        ones = torch.ones_like(blocks, dtype=torch.int32)
        return counts.scatter_add_(0, blocks // self.blocks_per_page, ones)

    def whole(self, counts: torch.Tensor) -> list[int]:
        """Pages of which `counts`, on the host, has every block; never page 0."""
        pages: list[int] = (counts == self._sizes).nonzero().flatten().tolist()
        return [page for page in pages if page]

    def fullest_first(self, free: torch.Tensor) -> torch.Tensor:
        """The same blocks: first those of page 0 and of the pages with the fewest free ones, last
        those of pages that are wholly free; of equal pages and in a page, low ids first."""
        room = self.counts(free) + self._lacking
        room[0] = 0
        key = room[free // self.blocks_per_page].to(torch.int64) * self.num_blocks + free
        return torch.sort(key).values % self.num_blocks

    def last(self, blocks: torch.Tensor, pages: Sequence[int]) -> torch.Tensor:
        """The same blocks, those of `pages` last."""
        mark = torch.zeros(self.num_pages, dtype=torch.int32)
        mark[list(pages)] = 1
        key = mark.to(self._device)[blocks // self.blocks_per_page]
        return blocks[torch.sort(key, stable=True).indices]


class HostCopy:
    """What a tensor holds now, to be read on the host later: the copy is queued, not waited for."""

    def __init__(self, values: torch.Tensor) -> None:
        if values.device.type == "cpu":
            self._host, self._done = values.clone(), None
            return
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def read(self) -> torch.Tensor:
        """A tensor on the host; waits if the copy is not there, which some steps later it is."""
        if self._done is not None:
            self._done.synchronize()
        return self._host


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First page and the one behind the last of each run of consecutive pages."""
    ordered = sorted(pages)
    begin = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
            yield ordered[begin], ordered[at - 1] + 1
            begin = at
