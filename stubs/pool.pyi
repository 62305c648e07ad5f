from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

_PageState = Literal["virtual", "preparing", "owned", "retiring", "quarantined"]
_BlockState = Literal["null", "used", "cached", "free"]
_Block = TypeVar("_Block")

class _HasBlockId(Protocol):
    @property
    def block_id(self) -> int: ...

class Ledger:
    """The state of every block and page of one pool, and the choice of what is handed out.

    Block 0 is the null block: never handed out, never freed; its page is owned from construction,
    never counts as empty and never retires. An edge that is not allowed is a ValueError that names
    the block or page and its state, and changes nothing. One thread at a time.
    """

    def __init__(self, num_blocks: int, blocks_per_page: int) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def blocks_per_page(self) -> int: ...

    # blocks
    def pop(self, n: int) -> list[int]:
        """Hand out n <= available() blocks: free ones by best fit, then the oldest cached ones."""
    def push_free(self, ids: Iterable[int]) -> None:
        """Used -> free: the content is dead."""
    def push_cached(self, ids: Iterable[int]) -> None:
        """Used -> cached, the last one being the most recently used."""
    def pop_blocks(self, blocks: list[_Block], n: int) -> list[_Block]:
        """As pop(), giving blocks[id] for each id; the list holds all num_blocks blocks."""
    def push_free_blocks(self, objs: Iterable[_HasBlockId]) -> None: ...
    def push_cached_blocks(self, objs: Iterable[_HasBlockId]) -> None: ...
    def take(self, block: int) -> None:
        """Cached or free, on an owned page -> used: a prefix hit."""
    def uncache(self, ids: Iterable[int]) -> None:
        """Cached -> free: the hash was dropped. Blocks in other states are left alone."""
    def reset_cached(self) -> None:
        """Every cached block -> free."""
    def take_first_used(self) -> list[int]:
        """Pages a block was handed out from for the first time since they became owned."""

    # growth
    def plan_growth(self, max_pages: int) -> list[int]:
        """Virtual -> preparing, lowest ids first."""
    def grown(self, pages: Iterable[int]) -> None:
        """Preparing -> owned."""
    def growth_failed(self, pages: Iterable[int]) -> None:
        """Preparing -> virtual."""

    # shrinking
    def retire_empty(self, max_pages: int) -> list[int]:
        """Owned and empty -> retiring, highest ids first."""
    def released(self, pages: Iterable[int]) -> None:
        """Retiring -> virtual."""
    def quarantine(self, pages: Iterable[int]) -> None:
        """Preparing or retiring -> quarantined, for good."""
    def victims_for_pages(self, n_pages: int) -> list[int]:
        """The cached blocks to evict so that up to n_pages more pages become empty."""
    def victims_over_bound(self, max_pages: int) -> list[int]:
        """The same for as many pages as cached_only_pages() exceeds max_pages."""

    # counts and views
    def num_pages(self) -> int: ...
    def num_free(self) -> int:
        """Free blocks on owned pages."""
    def num_cached(self) -> int: ...
    def num_used(self) -> int:
        """Without the null block."""
    def available(self) -> int:
        """num_free() + num_cached()."""
    def pages(self, state: _PageState) -> int: ...
    def empty_pages(self) -> int: ...
    def cached_only_pages(self) -> int: ...
    def used_pages(self) -> int:
        """Owned pages that are not empty, the null page among them."""
    def state_of(self, block: int) -> _BlockState: ...
    def page_state(self, page: int) -> _PageState: ...
    def block_page(self, block: int) -> int: ...
    def pages_of(self, ids: Iterable[int]) -> list[int]:
        """Sorted, each once."""
    def free_ids(self) -> list[int]:
        """What pop(available()) would return, in that order."""
    def check_integrity(self) -> None:
        """Recompute everything; RuntimeError with the values of the first mismatch."""
