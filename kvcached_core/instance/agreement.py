"""How an engine's ranks come to own pages, and to give them back: all of them, or none.

One rank answers for itself through the segment. Several agree by transactions
(docs/transactions.md), behind the same calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcached_core.budget import Segment, sockets_folder
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.txn.transport import Transactions


@dataclass
class Changes:
    """What became of pages since the last look."""

    owned: list[int] = field(default_factory=list)
    """By all ranks: they were asked for."""
    refused: list[int] = field(default_factory=list)
    """Asked for, and no rank has memory for them."""
    partial: list[int] = field(default_factory=list)
    """Asked for, and only some ranks own them: they have to be retired."""
    released: list[int] = field(default_factory=list)
    """Retired, and gone at all ranks."""
    kept: list[int] = field(default_factory=list)
    """Retired, and yet owned by all ranks: one of them could not give it back."""
    lost: list[int] = field(default_factory=list)
    """In quarantine: a driver's state is unknown."""
    retired: int = 0
    """Pages that were retired and are told of here."""
    epoch: int = 0
    """The last of theirs."""


class Agreement(ABC):
    """Pages are asked for and retired in the engine's thread, and never waited for here."""

    @abstractmethod
    def outstanding(self) -> int:
        """Pages asked for that no answer has come for."""

    @abstractmethod
    def request(self, pages: Sequence[int]) -> None:
        """Asks all ranks for pages."""

    @abstractmethod
    def retire(self, pages: Sequence[int], epoch: int) -> None:
        """All ranks give the pages back behind the step whose update has this epoch. Some may be
        `partial`."""

    @abstractmethod
    def poll(self) -> Changes:
        """What is known of the pages that were asked for, or retired."""

    @abstractmethod
    def progress(self) -> int:
        """Changes when there may be something to poll."""

    @abstractmethod
    def wait_progress(self, seen: int, milliseconds: int) -> int:
        """Until progress() is not `seen`, or the deadline; returns it."""

    @abstractmethod
    def failure(self) -> str:
        """Why pages may be lost, after which the engine must stop; empty if all is well."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


class SegmentAgreement(Agreement):
    """Each rank answers in the segment, and the least of the answers counts."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._retiring: list[tuple[int, list[int]]] = []

    def outstanding(self) -> int:
        return self.segment.outstanding()

    def request(self, pages: Sequence[int]) -> None:
        self.segment.request(pages)

    def retire(self, pages: Sequence[int], epoch: int) -> None:
        self._retiring.append((epoch, list(pages)))

    def poll(self) -> Changes:
        changes = Changes()
        if self.segment.outstanding():
            changes.owned, changes.refused, changes.partial = self.segment.poll()
        if self._retiring:
            self._poll_released(changes)
        return changes

    def _poll_released(self, changes: Changes) -> None:
        released = self.segment.released_epoch()
        while self._retiring and self._retiring[0][0] <= released:
            changes.epoch, pages = self._retiring.pop(0)
            changes.retired += len(pages)
            for page in pages:
                lost = self.segment.is_quarantined(page)
                (changes.lost if lost else changes.released).append(page)

    def progress(self) -> int:
        return self.segment.progress()

    def wait_progress(self, seen: int, milliseconds: int) -> int:
        return self.segment.wait_progress(seen, milliseconds)

    def failure(self) -> str:
        return self.segment.failure()

    def close(self) -> None:
        pass


class TransactedAgreement(Agreement):
    """Every rank prepares, then all commit or abort."""

    def __init__(self, plan: StoragePlan, segment: Segment) -> None:
        """Connects to all ranks. Raises RuntimeError."""
        self._segment = segment
        self._epoch = 0  # the last, for what is recorded
        self._transactions = Transactions(
            sockets_folder(plan.segment), plan.instance, plan.start, plan.num_ranks
        )

    def outstanding(self) -> int:
        return self._transactions.growing()

    def request(self, pages: Sequence[int]) -> None:
        self._segment.record(pages, "virtual", "preparing", self._epoch)
        self._transactions.begin("grow", pages)

    def retire(self, pages: Sequence[int], epoch: int) -> None:
        self._epoch = epoch
        self._transactions.begin("shrink", pages, epoch)

    def poll(self) -> Changes:
        changes = Changes()
        if not self._transactions.has_ended():
            return changes
        for asked, ended in self._transactions.take_ended():
            changes.lost += ended.lost
            if asked.kind == "grow":
                changes.owned += ended.owned
                changes.refused += ended.virtual
            else:
                changes.retired += len(asked.pages)
                changes.epoch = max(changes.epoch, asked.epoch)
                changes.kept += ended.owned
                changes.released += ended.virtual
        self._segment.record(changes.owned, "preparing", "owned", self._epoch)
        self._segment.record(changes.refused, "preparing", "virtual", self._epoch)
        return changes

    def progress(self) -> int:
        return self._transactions.progress()

    def wait_progress(self, seen: int, milliseconds: int) -> int:
        return self._transactions.wait_progress(seen, milliseconds)

    def failure(self) -> str:
        return self._segment.failure() or self._transactions.failure

    def close(self) -> None:
        self._transactions.close()


def make_agreement(plan: StoragePlan, segment: Segment) -> Agreement:
    return TransactedAgreement(plan, segment) if plan.start else SegmentAgreement(segment)
