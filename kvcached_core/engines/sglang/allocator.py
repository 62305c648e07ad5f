"""SGLang's allocators over pages that come and go.

The list of free ids stays a tensor on the device, as in the classes below; it holds only ids that
have memory, or that get it when they are listed. What may be taken is settled in `begin_step`.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.kv_storage import get_kv_storage
from sglang.srt.utils import get_num_new_pages

from kvcached_core.engines.sglang.stock import Stock


class _Elastic:
    """What both kinds share; a block is one of their pages, or a token."""

    page_size: int
    stock: Stock | None = None
    _free: torch.Tensor | None = None

    @property
    def free_pages(self) -> torch.Tensor:
        """The list. What SGLang makes longer, it frees: it has several ways to, and each release
        others."""
        assert self._free is not None
        return self._free

    @free_pages.setter
    def free_pages(self, free: torch.Tensor) -> None:
        if self.stock is not None and self._free is not None:
            self.stock.note_freed(max(0, len(free) - len(self._free)))
        self._free = free

    def relist(self, free: torch.Tensor) -> None:
        """The list as the stock has changed it: nothing is freed."""
        self._free = free

    def clear(self) -> None:
        super().clear()  # type: ignore[misc]
        if self.stock is None:
            self.stock = get_kv_storage().open_stock(self)
        self.relist(self.stock.clear())

    def available_size(self) -> int:
        assert self.stock is not None
        return self.stock.available(len(self.free_pages)) * self.page_size

    def unbacked_size(self) -> int:
        assert self.stock is not None
        return self.stock.unbacked(len(self.free_pages)) * self.page_size

    def _cover(self, blocks: int) -> bool:
        """Whether so many can be taken, from the list as it then is."""
        assert self.stock is not None
        if blocks > self.stock.available(len(self.free_pages)):
            return False
        self.relist(self.stock.cover(self.free_pages, blocks))
        return True


class ElasticTokenAllocator(_Elastic, TokenToKVPoolAllocator):  # type: ignore[misc]
    def alloc(self, need_size: int) -> Any:
        return super().alloc(need_size) if self._cover(need_size) else None


class ElasticPagedAllocator(_Elastic, PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    def alloc(self, need_size: int) -> Any:
        return super().alloc(need_size) if self._cover(need_size // self.page_size) else None

    def alloc_extend(self, *given: Any, num_new_pages: int | None = None) -> Any:
        """`given` as SGLang's: lengths of the prefixes, the same on the host, lengths, the same on
        the host, and what else it takes."""
        if num_new_pages is None:
            num_new_pages = get_num_new_pages(
                seq_lens=given[3], page_size=self.page_size, prefix_lens=given[1]
            )
        if not self._cover(num_new_pages):
            return None
        return super().alloc_extend(*given, num_new_pages=num_new_pages)

    def alloc_decode(self, seq_lens: Any, seq_lens_cpu: Any, last_loc: Any) -> Any:
        need = get_num_new_pages(seq_lens=seq_lens_cpu, page_size=self.page_size, decode=True)
        return super().alloc_decode(seq_lens, seq_lens_cpu, last_loc) if self._cover(need) else None
