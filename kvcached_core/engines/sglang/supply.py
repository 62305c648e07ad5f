"""The supply of pages, where what no request uses is not known page by page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

from kvcached_core.budget import BudgetError
from kvcached_core.engines.sglang.shared_ledger import SharedLedger
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.supply import Supply
from kvcached_core.pool import Ledger

_HOLD_MS = 10_000


class SglangSupply(Supply):
    """In its ledger a block is a page: free where it is spare, used where its blocks are listed."""

    def __init__(
        self,
        plan: StoragePlan,
        ledger: SharedLedger,
        log: logging.Logger,
        *,
        unused_pages: Callable[[], int],
    ) -> None:
        """`unused_pages` tells how many no request uses, at most."""
        # It has all that a supply asks of a ledger, but obtainable(), which only vLLM asks for.
        super().__init__(plan, cast("Ledger", ledger), log)
        self._count_unused = unused_pages

    def hold(self, pages: Sequence[int]) -> None:
        """Takes memory for pages that the ledger has as owned from the start, before anything else
        is asked for. Raises BudgetError."""
        if not pages:
            return
        self.agreement.request(pages)
        deadline, owned = self._deadline(_HOLD_MS), 0
        while self.agreement.outstanding():
            seen = self.agreement.progress()
            owned += len(self.agreement.poll().owned)
            if self.agreement.outstanding():
                left = deadline.left_ms()
                if not left:
                    break
                self.agreement.wait_progress(seen, left)
        if owned < len(pages):
            raise BudgetError(
                f"KV storage of engine {self._plan.instance}: no memory for padding's pages; "
                "there are others on this budget, or --kv-storage-config: floor is too small"
            )

    # --- moments of the scheduler; those of several ranks are theirs together (ranks/) ---

    def begin_turn(self) -> None:
        """An iteration begins, unless it has already."""

    def end_turn(self, *, look: bool) -> None:
        """It ends. `look`: what is outside may matter to the next one."""

    def is_called(self, is_due: Callable[[], bool]) -> bool:
        """Whether an idle engine has to look around, as it has whenever that is due."""
        return is_due()

    def fall_asleep(self) -> None:
        """The floor is about to be given up."""

    def all_are_awake(self, own: bool) -> bool:
        """Whether the floor is there again; `own`: this rank's."""
        return own

    def woke_in_vain(self) -> bool:
        """Whether the floor, as far as it is there, goes back: not every rank has its own, and
        another engine's may wait for it likewise. Tells it once."""
        return False

    def finish_retirement(self) -> None:
        """Takes in that all pages are gone that were retired and released here. Raises
        RuntimeError where they are not in time."""
        self.settle()

    def unused_pages(self) -> int:
        return self._count_unused()

    def surplus_with(self, collectable: int, *, resting: bool) -> int:
        """Spare pages beyond the reserve, if so many more were."""
        return self._policy.pages_to_retire(
            self._ledger.empty_pages() + collectable, self.agreement.outstanding(), idle=resting
        )

    def unobtainable(self, pages: int) -> int:
        """How many of so many pages are neither on their way, to or fro, nor to be had now."""
        coming = self.agreement.outstanding() + self._ledger.pages("retiring")
        return max(0, pages - coming - self._free_pages())
