"""The supply of pages, where what no request uses is not known page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcached_core.instance.supply import Supply


class SglangSupply(Supply):
    """In its ledger a block is a page: free where it is spare, used where its blocks are listed."""

    def __init__(self, *args: Any, unused_pages: Callable[[], int]) -> None:
        """`unused_pages` tells how many no request uses, at most."""
        super().__init__(*args)
        self._count_unused = unused_pages

    def unused_pages(self) -> int:
        return self._count_unused()

    def surplus_with(self, collectable: int, *, resting: bool) -> int:
        """Spare pages beyond the reserve, if so many more were."""
        return self._policy.pages_to_retire(
            self._ledger.empty_pages() + collectable, self.agreement.outstanding(), idle=resting
        )
