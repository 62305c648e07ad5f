"""The blocks of one allocator by page: what can be taken, and which pages can be given back.

A page that is owned is either *listed*, its blocks are in the allocator's free list or in use, or
*spare*: wholly free, and in no list. In the ledger, whose blocks are our pages, a listed page is a
used block and a spare one a free block, so that all it counts holds of pages.

The host knows how many blocks the list has, not which. So a page comes back in two moves. The list
is sorted by page, fullest first, and its end, where wholly free pages come to lie if there are any,
is *withheld*: nobody takes from it. How many blocks of each page that part holds is counted on the
device and copied. A fixed number of steps later, never when the copy happens to be there, since all
ranks must do the same: pages of which every block is there are spare, the rest returns to the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvcached_core.engines.sglang.free_list import HostCopy, PageMap
from kvcached_core.pool import Ledger

# Steps from counting on the device to acting on it: by then the passes queued before have ended,
# so nothing is waited for.
LOOK_STEPS = 2


@dataclass(frozen=True)
class _Withheld:
    blocks: torch.Tensor
    pages: int
    """As many as it would be, if the list ended with whole ones."""
    counts: HostCopy
    due: int


class Stock:
    """Sizes are blocks; `free` is the allocator's list. One thread, but for what only reads."""

    def __init__(
        self, ledger: Ledger, pages: PageMap, make_ready: Callable[[list[int]], None]
    ) -> None:
        """`ledger`: one block a page. `make_ready(pages)` gives owned pages their memory."""
        self._ledger = ledger
        self._pages = pages
        self._make_ready = make_ready
        self._withheld: _Withheld | None = None
        self._listed = pages.size([0])
        self._spare = 0
        self._freed = 0  # since the last look
        self._found_all = True  # the last look left no page that was wholly free then
        self.suspended = False
        """Nothing can be taken."""

    # --- counts; from any thread ---

    def available(self, num_listed: int) -> int:
        """Blocks that can be taken, given how many the list has."""
        return 0 if self.suspended else num_listed + self._spare

    def unbacked(self, num_listed: int) -> int:
        """All other free blocks: without memory, withheld, or not to be taken now."""
        used = self._listed - num_listed - self.withheld_blocks
        return self._pages.num_blocks - 1 - used - self.available(num_listed)

    @property
    def withheld_blocks(self) -> int:
        withheld = self._withheld
        return 0 if withheld is None else len(withheld.blocks)

    def collectable_pages(self, num_listed: int) -> int:
        """Listed pages that may be wholly free, at most; of those withheld, all."""
        most = num_listed // self._pages.blocks_per_page
        if self._found_all:
            most = min(most, self._freed)
        return most + (0 if self._withheld is None else self._withheld.pages)

    # --- taking and freeing ---

    def refresh(self) -> None:
        """Takes in what the ledger was told: pages grown or retired."""
        ledger, last = self._ledger, self._pages.num_pages - 1
        spare = ledger.num_free() * self._pages.blocks_per_page
        if last and ledger.page_state(last) == "owned" and ledger.state_of(last) == "free":
            spare += self._pages.size([last]) - self._pages.blocks_per_page
        self._spare = spare

    def cover(self, free: torch.Tensor, need: int) -> torch.Tensor:
        """The list with as many spare pages as let `need` blocks be taken, or all of them."""
        while len(free) < need and self._ledger.num_free() and not self.suspended:
            short = -((len(free) - need) // self._pages.blocks_per_page)
            pages = self._ledger.pop(min(short, self._ledger.num_free()))
            self._make_ready(pages)
            free = torch.cat((free, self._pages.blocks(pages)))
            self._listed += self._pages.size(pages)
            self.refresh()
        return free

    def note_freed(self, blocks: int) -> None:
        self._freed += blocks

    def clear(self) -> torch.Tensor:
        """Every block is free: all pages but page 0 are spare. The list."""
        self._withheld = None
        self._ledger.push_free(self._used_pages())
        self._listed = self._pages.size([0])
        self._freed, self._found_all = 0, True
        self.refresh()
        return self._pages.blocks([0]) if self._listed else self._pages.none()

    def _used_pages(self) -> list[int]:
        if not self._ledger.num_used():
            return []
        pages = range(1, self._pages.num_pages)
        return [page for page in pages if self._ledger.state_of(page) == "used"]

    # --- from listed to spare ---

    @property
    def is_looking(self) -> bool:
        return self._withheld is not None

    def look(self, free: torch.Tensor, pages: int, step: int) -> torch.Tensor:
        """Withholds the end of the list, `pages` long, to see which of it are whole; sorts it."""
        assert self._withheld is None
        free = self._pages.fullest_first(free)
        keep = max(0, len(free) - pages * self._pages.blocks_per_page)
        tail = free[keep:]
        counts = HostCopy(self._pages.counts(tail))
        self._withheld = _Withheld(tail, pages, counts, step + LOOK_STEPS)
        self._freed = 0
        return free[:keep]

    def settle(self, free: torch.Tensor, step: int) -> torch.Tensor:
        """The list, once a look is due with what was not whole."""
        withheld = self._withheld
        if withheld is None or step < withheld.due:
            return free
        self._withheld = None
        whole = self._pages.whole(withheld.counts.read())
        self._found_all = len(whole) < withheld.pages
        rest = withheld.blocks
        if whole:
            size = self._pages.size(whole)
            rest = self._pages.last(rest, whole)[: len(rest) - size]
            self._listed -= size
            self._ledger.push_free(whole)
            self.refresh()
        return torch.cat((free, rest)) if len(rest) else free

    def restore(self, free: torch.Tensor) -> torch.Tensor:
        """The list with all that was withheld: it is needed."""
        withheld, self._withheld = self._withheld, None
        if withheld is None:
            return free
        self._freed += len(withheld.blocks)
        return torch.cat((free, withheld.blocks))
