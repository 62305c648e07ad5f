"""Pages over blocks: a block is what SGLang's allocator hands out, a token or a page of its own.

A page of ours is consecutive blocks that get and lose memory together, in all tensors of the pool.
Block 0 takes the writes of padding and is handed out to nobody; so page 0 always has memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from kvcached_core.instance.plan import choose_blocks_per_page, page_memory

# Beyond its own tokens, the scheduler wants this many blocks and tokens free before it admits a
# request: one block that rounding may cost, one that allocating counts on top, and a strict "more".
_SPARE_BLOCKS = 2
_SPARE_TOKENS = 8


class Pages(ABC):
    """The pages of an engine: of one pool, or of several that share one memory. Sizes are bytes."""

    granularity: int

    @property
    @abstractmethod
    def pools(self) -> tuple[Geometry, ...]:
        """Each one's pages."""

    @property
    def placed(self) -> tuple[int, ...]:
        """Which of `pools` has the first ids of pages, which the next, and so on."""
        return tuple(range(len(self.pools)))

    @property
    @abstractmethod
    def extent_bytes(self) -> tuple[int, ...]:
        """Of one page in each tensor, or in what tensors share."""

    @abstractmethod
    def pages_of_request(self, tokens: int) -> tuple[int, ...]:
        """Pages of each pool that let a request of so many tokens, prompt and answer, run alone."""

    @abstractmethod
    def tokens_of_request(self, pages: int) -> int:
        """Tokens of the longest request that so many pages let run alone; may be negative."""

    @property
    def num_pages(self) -> int:
        return sum(pool.num_pages for pool in self.pools)

    @property
    def page_bytes(self) -> int:
        """Memory that one page needs at most."""
        return page_memory(self.extent_bytes, self.granularity)


@dataclass(frozen=True)
class Geometry(Pages):
    """Of one pool."""

    block_tokens: int
    """Tokens of a block."""
    num_blocks: int
    """Block 0 included."""
    blocks_per_page: int
    block_bytes: tuple[int, ...]
    """Of one block in each tensor."""
    granularity: int

    @property
    def pools(self) -> tuple[Geometry, ...]:
        return (self,)

    @property
    def num_pages(self) -> int:
        return -(-self.num_blocks // self.blocks_per_page)

    @property
    def page_tokens(self) -> int:
        return self.blocks_per_page * self.block_tokens

    @property
    def extent_bytes(self) -> tuple[int, ...]:
        return tuple(self.blocks_per_page * size for size in self.block_bytes)

    def pages_of_request(self, tokens: int) -> tuple[int]:
        blocks = 1 + -(-(tokens + _SPARE_TOKENS) // self.block_tokens) + _SPARE_BLOCKS
        return (min(-(-blocks // self.blocks_per_page), self.num_pages),)

    def tokens_of_request(self, pages: int) -> int:
        blocks = min(pages * self.blocks_per_page, self.num_blocks) - 1 - _SPARE_BLOCKS
        return blocks * self.block_tokens - _SPARE_TOKENS


def slack_bytes(row_bytes: int, page_size: int, granularity: int) -> int:
    """Addresses to reserve behind a tensor of blocks of `row_bytes`, before it is known how many
    blocks a page will hold: what its last page may reach beyond its last block."""
    return 2 * (page_size + row_bytes) + 8 * granularity


def blocks_per_page(
    block_bytes: Sequence[int], page_size: int, granularity: int, room: Sequence[int]
) -> int:
    """As many as fill `page_size`, in whole granules where that costs little and each tensor has
    that much `room` behind its last block."""
    chosen = choose_blocks_per_page([block_bytes], page_size, granularity)
    if all(chosen * size <= most for size, most in zip(block_bytes, room, strict=True)):
        return chosen
    return max(1, -(-page_size // sum(block_bytes)))
