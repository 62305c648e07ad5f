"""The supply of pages of an engine with several ranks: the same answers at all of them.

Each rank runs the same scheduler on the same requests, so each computes the same, as long as what
it does not compute is the same too: the state of pages and of the budget. That is looked at by the
first rank alone, and announced for a moment that no rank has passed yet: for the next iteration,
since the requests of that one, empty or not, are sent on by the first rank, or stage, later than
the announcement; or within an iteration in which something is lacking, which all see alike: there
they wait for it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable

from kvcached_core.engines.sglang.ranks.announced import (
    AnnouncedAgreement,
    AnnouncedBudgets,
    Wait,
)
from kvcached_core.engines.sglang.ranks.board import Board
from kvcached_core.engines.sglang.ranks.news import News
from kvcached_core.engines.sglang.shared_ledger import SharedLedger
from kvcached_core.engines.sglang.supply import SglangSupply
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.waits import Deadline

_RELEASE_MS = 30_000


class RanksSupply(SglangSupply):
    """What both kinds of ranks share: answers from the last news. An iteration of the scheduler is
    between `begin_turn` and `end_turn`."""

    agreement: AnnouncedAgreement
    budgets: AnnouncedBudgets

    def __init__(
        self,
        plan: StoragePlan,
        ledger: SharedLedger,
        log: logging.Logger,
        *,
        unused_pages: Callable[[], int],
        board: Board,
    ) -> None:
        self._board = board
        self._news = News()
        self._turn = self._round = 0
        self._is_in_turn = False
        self._is_called = False
        self._left_ms = 0
        self._attempt = 0  # at waking: the next one, or that under way
        super().__init__(plan, ledger, log, unused_pages=unused_pages)

    def close(self) -> None:
        super().close()
        self._board.close()

    # --- moments ---

    def begin_turn(self) -> None:
        if self._is_in_turn:
            return
        self._is_in_turn = True
        self._turn, self._round = self._turn + 1, 0
        news = self._news_of_turn()
        self._is_called = news is not None and news.call
        if news is not None:
            self._take(news)

    def end_turn(self, *, look: bool) -> None:
        self._is_in_turn = False

    def _hear(self, wait: Wait) -> None:
        """What is announced next, within an iteration. `wait` is the first rank's."""
        self._round += 1
        news = self._news_of_round(wait)
        self._left_ms = news.left
        self._take(news)

    def _take(self, news: News) -> None:
        self._news = self.budgets.news = news
        self.agreement.take(news)

    @abstractmethod
    def _news_of_turn(self) -> News | None:
        """What was announced for the iteration that begins."""

    @abstractmethod
    def _news_of_round(self, wait: Wait) -> News: ...

    def is_called(self, is_due: Callable[[], bool]) -> bool:
        return self._is_called

    def settle(self) -> None:
        try:
            super().settle()
        except ValueError as error:
            raise self._apart(f"cannot do what rank 0 announced: {error}") from None

    def _apart(self, why: str) -> RuntimeError:
        return RuntimeError(
            f"KV storage of engine {self._plan.instance}: rank {self._board.rank} {why}; they have "
            "taken different decisions, and --kv-storage-config check_ranks shows in what"
        )

    # --- the outside ---

    def _make_budgets(self) -> AnnouncedBudgets:
        return AnnouncedBudgets(self._plan, self.segment, self._hear)

    def _deadline(self, milliseconds: int) -> Deadline:
        self._left_ms = milliseconds
        return _SharedDeadline(self)

    @property
    def left_ms(self) -> int:
        """Of the wait that is going on."""
        return self._left_ms

    # --- sleep ---

    def fall_asleep(self) -> None:
        self._attempt += 1

    def all_are_awake(self, own: bool) -> bool:
        if own:
            self._board.raise_flag(self._attempt)
        return self._news.awake == self._attempt

    def woke_in_vain(self) -> bool:
        if self._news.vain != self._attempt:
            return False
        self._attempt += 1
        return True

    def finish_retirement(self) -> None:
        deadline = self._deadline(_RELEASE_MS)
        self.settle()
        while self._retiring:
            if not deadline.left_ms():
                raise RuntimeError(
                    f"KV storage of engine {self._plan.instance}: its ranks did not release all "
                    f"pages within {_RELEASE_MS} ms"
                )
            self.agreement.wait_progress(self.agreement.progress(), deadline.left_ms())
            self.settle()


class _SharedDeadline(Deadline):
    def __init__(self, supply: RanksSupply) -> None:
        self._supply = supply

    def left_ms(self) -> int:
        return self._supply.left_ms
