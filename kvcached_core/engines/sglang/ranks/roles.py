"""The two kinds of ranks: the first, which looks and announces, and the others."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

import msgspec

from kvcached_core.engines.sglang.ranks.announced import AnnouncedAgreement, Wait
from kvcached_core.engines.sglang.ranks.board import Board
from kvcached_core.engines.sglang.ranks.board_file import BoardError
from kvcached_core.engines.sglang.ranks.news import News
from kvcached_core.engines.sglang.ranks.supply import RanksSupply
from kvcached_core.engines.sglang.shared_ledger import SharedLedger
from kvcached_core.engines.sglang.supply import SglangSupply
from kvcached_core.instance.agreement import Agreement, make_agreement
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.supply import PageState
from kvcached_core.instance.waits import Deadline

# Ranks that have their floors wait so long, or up to twice that, for the others' before all give
# theirs back: two engines that wake may each have what the other one lacks.
_TOGETHER_MS = 1000


class LeadingSupply(RanksSupply):
    """Of the first rank: looks outside, and announces what it saw. RuntimeError where another rank
    does not listen any more."""

    def _make_agreement(self) -> Agreement:
        behind = make_agreement(self._plan, self.segment)
        self._next: News | None = None
        self._calls = False
        self._until = Deadline(0)
        self._awake = self._vain = 0
        self._waking: Deadline | None = None
        return AnnouncedAgreement(self.segment, behind, self._hear)

    def _news_of_turn(self) -> News | None:
        news, self._next = self._next, None
        return news

    def _news_of_round(self, wait: Wait) -> News:
        wait()
        news = self._look(self._turn, self._round, left=self._until.left_ms())
        self._announce(news)
        return news

    def end_turn(self, *, look: bool) -> None:
        super().end_turn(look=look)
        if not look and not self._calls:
            return
        news = self._look(self._turn + 1, 0)
        self._calls = False
        if news.says_more_than(self._news):
            self._announce(news)
            self._next = news

    def is_called(self, is_due: Callable[[], bool]) -> bool:
        if not self._is_called:
            self._calls = is_due()
        return self._is_called

    def is_asked(self) -> bool:
        return self.budgets.outside.asked_pages() > 0

    def all_are_awake(self, own: bool) -> bool:
        if self._waking is None:
            self._waking = Deadline(random.randrange(_TOGETHER_MS, 2 * _TOGETHER_MS))
        return super().all_are_awake(own)

    def _judge_waking(self) -> None:
        """Once of each attempt: all have their floors, or some have had one for nothing."""
        attempt = self._attempt
        if self._waking is None or attempt in (self._awake, self._vain):
            return
        if self._board.least_flag() >= attempt:
            self._awake, self._waking = attempt, None
        elif self._board.most_flag() >= attempt and not self._waking.left_ms():
            self._vain, self._waking = attempt, None

    def _deadline(self, milliseconds: int) -> Deadline:
        self._until = Deadline(milliseconds)
        return super()._deadline(milliseconds)

    def _announce(self, news: News) -> None:
        try:
            self._board.announce(msgspec.msgpack.encode(news))
        except BoardError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                f"KV storage of engine {self._plan.instance} failed: {error}"
            ) from None

    def _look(self, turn: int, round_: int, left: int = 0) -> News:
        """What became of pages first: what the budget says then holds with that."""
        behind = self.agreement.behind
        assert behind is not None
        self._judge_waking()
        self.agreement.seen = behind.progress()
        growing = behind.outstanding()
        changes = behind.poll()
        outside = self.budgets.outside
        wanted = outside.others_want()
        return News(
            turn=turn,
            round=round_,
            free=outside.least_pages("available"),
            reachable=outside.least_pages("reachable"),
            fair=outside.fair_pages(),
            asked=outside.asked_pages(self.unused_pages()) if wanted else 0,
            event=outside.event(),
            wanted=wanted,
            call=self._calls,
            awake=self._awake,
            vain=self._vain,
            left=left,
            grown=growing - behind.outstanding(),
            owned=tuple(changes.owned),
            refused=tuple(changes.refused),
            released=tuple(changes.released),
            kept=tuple(changes.kept),
            lost=tuple(changes.lost),
            retired=changes.retired,
            epoch=changes.epoch,
        )


class FollowingSupply(RanksSupply):
    """Of any other rank: goes by what the first one announced. RuntimeError where that is not heard
    of any more, or speaks of another moment than this rank is at; BoardError where nothing that it
    announces can be read."""

    def _make_agreement(self) -> Agreement:
        return AnnouncedAgreement(self.segment, None, self._hear)

    def _news_of_turn(self) -> News | None:
        entry = self._board.peek()
        if entry is None:
            return None
        news = self._read(entry)
        if news.at < (self._turn, 0):
            raise self._elsewhere(news)
        if news.at > (self._turn, 0):
            return None
        self._board.take()
        return news

    def _news_of_round(self, wait: Wait) -> News:
        try:
            entry = self._board.await_entry()
        except BoardError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                f"KV storage of engine {self._plan.instance}, rank {self._board.rank}: {error}"
            ) from None
        news = self._read(entry)
        if news.at != (self._turn, self._round):
            raise self._elsewhere(news)
        self._board.take()
        return news

    def _read(self, entry: bytes) -> News:
        try:
            return msgspec.msgpack.decode(entry, type=News)
        except msgspec.MsgspecError as error:
            raise self._board.unreadable(f"no announcement but {entry[:16]!r}: {error}") from None

    def _elsewhere(self, news: News) -> RuntimeError:
        here = f"is at moment {self._turn}.{self._round}"
        return self._apart(f"{here}, and rank 0 announced {news.turn}.{news.round}")

    # --- which only the first rank tells ---

    def publish_wish(self, pages: int) -> None:
        pass

    def publish_idle(self, *, resting: bool) -> None:
        pass

    def _record(
        self, pages: Sequence[int], before: PageState, after: PageState, epoch: int
    ) -> None:
        pass


def supply_of(
    plan: StoragePlan,
    ledger: SharedLedger,
    log: logging.Logger,
    *,
    unused_pages: Callable[[], int],
    board: Board | None,
) -> SglangSupply:
    """This rank's, whose plan it is. `board`, where there are several. Raises RuntimeError."""
    if board is None:
        return SglangSupply(plan, ledger, log, unused_pages=unused_pages)
    kind = FollowingSupply if board.rank else LeadingSupply
    return kind(plan, ledger, log, unused_pages=unused_pages, board=board)
