"""The pages of an engine, and how many of them one request of the greatest length needs."""

from __future__ import annotations

from dataclasses import dataclass

from kvcached_core.engines.vllm.room import Need
from kvcached_core.instance.plan import choose_blocks_per_page, page_memory


@dataclass(frozen=True)
class Geometry:
    """Sizes are bytes."""

    block_bytes: tuple[tuple[int, ...], ...]
    """Rank by rank: of one block in each tensor, in the order of allocation."""
    request_blocks: int
    """Blocks of one request of the greatest length, the null block not counted."""
    page_size: int
    granularity: int

    @property
    def blocks_per_page(self) -> int:
        return choose_blocks_per_page(self.block_bytes, self.page_size, self.granularity)

    @property
    def request_pages(self) -> int:
        """Pages of such a request and the null block, alone in an empty pool."""
        return -(-(self.request_blocks + 1) // self.blocks_per_page)

    def page_bytes(self, rank: int) -> int:
        """Memory that one page of `rank` needs at most."""
        per_page = self.blocks_per_page
        return page_memory([per_page * size for size in self.block_bytes[rank]], self.granularity)

    def need(self, rank: int) -> Need:
        """What `rank` needs for one request of the greatest length."""
        least = min(self._smaller(), key=lambda geometry: geometry._request_bytes(rank))
        return Need(
            size=self._request_bytes(rank),
            page=self.page_bytes(rank),
            least_size=least._request_bytes(rank),
            least_page_size=least.page_size,
        )

    def _request_bytes(self, rank: int) -> int:
        return self.request_pages * self.page_bytes(rank)

    def _smaller(self) -> list[Geometry]:
        """The same with this page size, half of it, a quarter, down to one byte."""
        sizes = [self.page_size >> n for n in range(self.page_size.bit_length())]
        return [
            Geometry(self.block_bytes, self.request_blocks, size, self.granularity)
            for size in sizes
        ]
