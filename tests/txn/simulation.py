"""One world in which each message is somewhere: delivered, doubled or lost one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from kvcached_core.txn import (
    Abort,
    Attempt,
    Attempted,
    Commit,
    Fenced,
    Heard,
    RankGone,
    Settle,
    Settled,
    Terms,
    Tick,
)
from kvcached_core.txn.messages import ToCoordinator, ToRank
from txn import world as w
from txn.world import PageState, must

NOTHING: frozenset[object] = frozenset()


class Packet(NamedTuple):
    """On its way between the coordinator and a rank."""

    rank: int
    message: ToRank | ToCoordinator

    @property
    def to_rank(self) -> bool:
        return isinstance(self.message, ToRank)

    def __str__(self) -> str:
        way = f"to rank {self.rank}" if self.to_rank else f"from rank {self.rank}"
        return f"{way}: {shown(self.message)}"


class Simulation:
    """Raises Violation when an invariant breaks."""

    def __init__(self, ranks: int, pages: tuple[PageState, ...], terms: Terms) -> None:
        self.world = w.start(ranks, pages, terms)
        self.flight: list[Packet] = []
        self._decided: dict[int, tuple[int, ...]] = {}

    @property
    def failure(self) -> str:
        return self.world.coordinator.failure

    def running(self, rank: int) -> list[Attempt | Settle]:
        return sorted(self.world.ranks[rank].running, key=lambda work: work.id)

    # --- events; each returns what it put on its way ---

    def begin(self, kind: str, pages: tuple[int, ...]) -> list[Packet]:
        return self._now(w.begin(self.world, kind, pages))

    def tick(self) -> list[Packet]:
        return self._now(w.coordinate(self.world, Tick()))

    def deliver(self, packet: Packet, keep: bool = False) -> list[Packet]:
        """`keep`: it comes once more."""
        if not keep:
            self.flight.remove(packet)
        at = packet.rank
        if not packet.to_rank:
            return self._now(w.coordinate(self.world, Heard(at, packet.message)))  # type: ignore[arg-type]
        rank = self.world.ranks[at]
        return self._now(w.put(self.world, at, w.participate(rank, packet.message)))

    def lose(self, packet: Packet) -> None:
        self.flight.remove(packet)

    def work(
        self, at: int, work: Attempt | Settle, held: Iterable[int], lost: Iterable[int]
    ) -> list[Packet]:
        """The driver of a rank is done; `held` only for an attempt."""
        gone = tuple(sorted(lost))
        attempted = isinstance(work, Attempt)
        done = (
            Attempted(work.id, tuple(sorted(held)), gone) if attempted else Settled(work.id, gone)
        )
        rank = w.finish(self.world.ranks[at], work, done)
        return self._now(w.put(self.world, at, rank))

    def fence(self, at: int) -> list[Packet]:
        rank = self.world.ranks[at]
        passed = replace(rank, fence=rank.fence + 1)
        return self._now(w.put(self.world, at, w.participate(passed, Fenced(passed.fence))))

    def die(self, at: int) -> None:
        self.flight = [p for p in self.flight if p.rank != at or not p.to_rank]
        self._now(w.die(self.world, at))

    def found_gone(self, at: int) -> list[Packet]:
        return self._now(w.coordinate(self.world, RankGone(at, "its process ended")))

    # --- inside ---

    def _now(self, world: w.World) -> list[Packet]:
        """Takes new messages out of the boxes, and checks."""
        sent = []
        for at, rank in enumerate(world.ranks):
            messages = sorted(rank.inbox | rank.outbox, key=str)
            sent += [Packet(at, message) for message in messages]
        for packet in sent:
            self._check_decision(packet.message)
        ranks = tuple(replace(rank, inbox=NOTHING, outbox=NOTHING) for rank in world.ranks)
        self.world = replace(world, ranks=ranks)
        self.flight += sent
        w.check(self.world)
        return sent

    def _check_decision(self, message: object) -> None:
        if isinstance(message, Commit | Abort):
            pages = message.pages if isinstance(message, Commit) else ()
            one = self._decided.setdefault(message.id, pages)
            must(one == pages, f"transaction {message.id} is decided in two ways")


def shown(struct: object) -> str:
    """A message or work, in a line."""
    name = type(struct).__name__.lower()
    values = {field: getattr(struct, field) for field in struct.__struct_fields__}  # type: ignore[attr-defined]
    return " ".join([name, *(f"{key}={_value(value)}" for key, value in values.items())])


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + " ".join(map(str, value)) + "]"
    return str(value)
