"""What the budgets of an engine's ranks say: one record a device, however many ranks lie on it.

The scheduler half reads and waits here. It opens records, which are files: no device.
"""

from __future__ import annotations

from typing import Literal

from kvcached_core.budget import Budget, RowGone, Segment, open_device_budget
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.waits import Deadline

Question = Literal["available", "reachable", "fair_share"]

_TURN_MS = 1  # of each record, where there are several to wait for


class RankLeft(RowGone):
    """A rank of this engine is no more in the record of its device: it has ended, by itself or
    killed, or the engine ends."""


class Budgets:
    """From any thread. What asks for a rank raises RankLeft once it has left its record."""

    def __init__(self, plan: StoragePlan, segment: Segment) -> None:
        """Raises RuntimeError for a rank that has not started."""
        self._instance = plan.instance
        self._shares = plan.all_shares
        self._segment = segment
        self.rows = [_row_of(plan, segment, rank) for rank in range(plan.num_ranks)]
        """By rank."""
        self._by_device: dict[str, Budget] = {}
        self.firsts: list[tuple[Budget, int]] = []
        """Each device's record, with the row of the first rank there, for whom the instance's
        other ranks are no neighbours either."""
        for share, row in zip(self._shares, self.rows, strict=True):
            if share.device not in self._by_device:
                budget = open_device_budget(plan.budget_dir, share.device)
                self._by_device[share.device] = budget
                self.firsts.append((budget, row))

    def of(self, rank: int) -> Budget:
        """The record of the rank's device."""
        return self._by_device[self._shares[rank].device]

    # --- what could be had ---

    def answers(self, question: Question) -> list[int]:
        """What the records answer, in bytes, to each rank's row and its last look at its device:
        the scheduler half itself calls no driver."""
        return [self._answer(question, rank) for rank in range(len(self.rows))]

    def _answer(self, question: Question | Literal["reclaim_target"], rank: int, *more: int) -> int:
        sample = self._segment.sample(rank)
        try:
            return int(getattr(self.of(rank), question)(self.rows[rank], *sample, *more))
        except RowGone:
            raise RankLeft(
                f"KV storage of engine {self._instance}: rank {rank} has ended, or was told to: it "
                f"is no more in the budget of {self._shares[rank].device}"
            ) from None

    def least_pages(self, question: Question) -> int:
        """Pages that every rank can pay for; ranks of one device pay from one purse."""
        pages, purses = [], dict[str, tuple[int, int]]()
        for share, answer in zip(self._shares, self.answers(question), strict=True):
            pages.append(answer // share.page_bytes)
            most, price = purses.get(share.device, (0, 0))
            purses[share.device] = (max(most, answer), price + share.page_bytes)
        return min(*pages, *(most // price for most, price in purses.values()))

    def fair_pages(self) -> int:
        """Pages that are within each rank's share, reckoned with what belongs to them."""
        shares = zip(self._shares, self.answers("fair_share"), strict=True)
        return min(fair // share.own_bytes for share, fair in shares)

    def pages_below_limit(self) -> int:
        """Pages that no rank's limit forbids."""
        return min(
            max(0, share.limit - int(self._segment.rank_info(rank)["created_bytes"]))
            // share.page_bytes
            for rank, share in enumerate(self._shares)
        )

    # --- what neighbours need ---

    def others_want(self) -> bool:
        """Whether a neighbour on any of the devices waits for memory."""
        return any(budget.others_want(row) for budget, row in self.firsts)

    def asked_pages(self, unused: int | None = None) -> int:
        """Pages that cover what neighbours want of any rank: theirs may be smaller than ours. By
        what the record says is idle, or if `unused` pages are."""
        most = 0
        for rank, share in enumerate(self._shares):
            idle = () if unused is None else (unused * share.own_bytes,)
            target = self._answer("reclaim_target", rank, *idle)
            most = max(most, -(-target // share.own_bytes))
        return most

    # --- news ---

    def event(self) -> tuple[int, ...]:
        """Changes whenever something does in one of the records."""
        return tuple(budget.event() for budget, _ in self.firsts)

    def wait_event(self, seen: tuple[int, ...], milliseconds: int) -> None:
        """Blocks until event() is not `seen`, or the deadline passes. Where there are several
        records, it may be told so many _TURN_MS late."""
        if len(self.firsts) == 1:
            self.firsts[0][0].wait_event(seen[0], milliseconds)
            return
        deadline = Deadline(milliseconds)
        while deadline.left_ms():
            for (budget, _), before in zip(self.firsts, seen, strict=True):
                if budget.wait_event(before, _TURN_MS) != before:
                    return


def _row_of(plan: StoragePlan, segment: Segment, rank: int) -> int:
    info = segment.rank_info(rank)
    if not info["joined"]:
        raise RuntimeError(
            f"rank {rank} of engine {plan.instance} has not started its KV storage; its "
            "worker must be initialized before the scheduler"
        )
    return int(info["row"])
