"""Everything around the machines, as states and moves: ranks with their pages, fences and losses, a
network that loses, doubles and reorders, and somebody who grows and shrinks.

The network keeps every message that was ever sent and may deliver each at any time, again and
again, or never: so a state need not say what was lost or doubled. Messages that nothing would
answer any more are left out. Ranks are alike: a state and one with its ranks exchanged are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from kvcached_core.txn import (
    Abort,
    Attempt,
    Attempted,
    Begin,
    Commit,
    Coordinator,
    Ended,
    Failed,
    Fenced,
    Heard,
    Participant,
    RankGone,
    Send,
    Settle,
    Settled,
    Terms,
    Tick,
    Vote,
)

PageState = Literal["virtual", "prepared", "owned", "retained", "lost"]
Label = tuple[Any, ...]
NEVER = 1 << 30


class Violation(AssertionError):
    """What must never happen."""


def must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


class Rank(Struct, frozen=True, cache_hash=True):
    participant: Participant
    pages: tuple[PageState, ...]
    retired: tuple[int, ...]  # of each page: the update after which no step here uses it
    running: frozenset[Any] = frozenset()  # what it is at work on
    fence: int = 0  # steps up to it are done here
    inbox: frozenset[Any] = frozenset()
    outbox: frozenset[Any] = frozenset()
    alive: bool = True


class World(Struct, frozen=True, cache_hash=True):
    coordinator: Coordinator
    ranks: tuple[Rank, ...]
    told: tuple[str, ...]  # of each page: virtual, owned, lost, or busy
    epoch: int = 0
    begun: int = 0
    crashes: int = 0


class Limits(Struct, frozen=True):
    """How much happens."""

    transactions: int = 2
    crashes: int = 1
    losses: bool = True  # of pages, to driver errors
    pages_at_once: int = 1


def start(ranks: int, pages: tuple[PageState, ...], terms: Terms) -> World:
    rank = Rank(Participant(), pages, (0,) * len(pages))
    return World(Coordinator(ranks, terms), (rank,) * ranks, pages)


# --- the moves of a rank ---


def rank_moves(rank: Rank, epoch: int, losses: bool) -> Iterator[tuple[Label, Rank]]:
    """What may happen at a living rank when the last update is `epoch`, its death aside."""
    for message in rank.inbox:
        yield ("gets", message), participate(rank, message)
    for work in rank.running:
        for done in outcomes(work, losses):
            yield ("ends", work, done), finish(rank, work, done)
    if rank.fence < epoch:
        passed = replace(rank, fence=rank.fence + 1)
        yield ("fence", passed.fence), participate(passed, Fenced(passed.fence))


def outcomes(work: Attempt | Settle, losses: bool) -> Iterator[Attempted | Settled]:
    """All that a driver may make of it."""
    ends = ("held", "refused", "lost") if losses else ("held", "refused")
    if isinstance(work, Attempt):
        for each in product(ends, repeat=len(work.pages)):
            found = dict(zip(work.pages, each, strict=True))
            held, lost = ([p for p in work.pages if found[p] == end] for end in ("held", "lost"))
            yield Attempted(work.id, tuple(held), tuple(lost))
    else:
        yield Settled(work.id, ())
        if work.release and losses:
            yield Settled(work.id, work.release)


def participate(rank: Rank, event: Any) -> Rank:
    """The rank behind an event of its participant."""
    state, outputs = rank.participant.step(event)
    work = {each for each in outputs if isinstance(each, Attempt | Settle)}
    must(not work & rank.running, f"{work} is under way already")
    said = {each for each in outputs if not isinstance(each, Attempt | Settle)}
    return replace(rank, participant=state, running=rank.running | work, outbox=rank.outbox | said)


def finish(rank: Rank, work: Attempt | Settle, done: Any) -> Rank:
    """The rank when its driver has done `work`."""
    pages: list[Any] = list(rank.pages)
    if isinstance(work, Attempt):
        before, after = ("virtual", "prepared") if work.kind == "grow" else ("owned", "retained")
        for page in work.pages:
            must(pages[page] == before, f"{work}, but page {page} is {pages[page]}")
            if work.kind == "shrink":
                must(rank.fence >= rank.retired[page], f"{work} before the fence")
        for page in done.held:
            pages[page] = after
    else:
        for page in (*work.own, *work.release):
            good = pages[page] in ("prepared", "retained")
            must(good, f"{work}, but page {page} is {pages[page]}")
        for page in work.own:
            pages[page] = "owned"
        for page in work.release:
            pages[page] = "virtual"
    for page in done.lost:
        pages[page] = "lost"
    return participate(replace(rank, pages=tuple(pages), running=rank.running - {work}), done)


# --- the moves of the rest ---


def begins(world: World, limits: Limits) -> Iterator[tuple[Label, World]]:
    if world.begun == limits.transactions:
        return
    for kind, state in (("grow", "virtual"), ("shrink", "owned")):
        pages = [page for page, told in enumerate(world.told) if told == state]
        for count in range(1, limits.pages_at_once + 1):
            for some in combinations(pages, count):
                yield ("begin", kind, some), begin(world, kind, some)


def begin(world: World, kind: Any, pages: tuple[int, ...]) -> World:
    epoch = world.epoch + (kind == "shrink")
    if kind == "shrink":
        world = replace(world, ranks=tuple(_retire(r, pages, epoch) for r in world.ranks))
    begun = replace(
        world,
        told=tuple("busy" if p in pages else told for p, told in enumerate(world.told)),
        epoch=epoch,
        begun=world.begun + 1,
    )
    return coordinate(begun, Begin(kind, pages, epoch if kind == "shrink" else 0))


def _retire(rank: Rank, pages: Iterable[int], epoch: int) -> Rank:
    retired = tuple(epoch if p in pages else old for p, old in enumerate(rank.retired))
    return replace(rank, retired=retired) if rank.alive else rank


def coordinate(world: World, event: Any) -> World:
    """The world behind an event of the coordinator."""
    state, outputs = world.coordinator.step(event)
    ranks, told = list(world.ranks), list(world.told)
    for output in outputs:
        match output:
            case Send(at, message):
                if ranks[at].alive:
                    ranks[at] = replace(ranks[at], inbox=ranks[at].inbox | {message})
            case Ended():
                _tell(told, output)
            case Failed(reason):
                must("rank" in reason, f"the failure names no rank: {reason}")
    return replace(world, coordinator=state, ranks=tuple(ranks), told=tuple(told))


def _tell(told: list[str], ended: Ended) -> None:
    for state in ("owned", "virtual", "lost"):
        for page in getattr(ended, state):
            must(told[page] == "busy", f"{ended}, but page {page} is {told[page]}")
            told[page] = state


def die(world: World, at: int) -> World:
    """Its memory is gone, what it said is not."""
    nobody = Rank(Participant(), (), (), outbox=world.ranks[at].outbox, alive=False)
    return replace(put(world, at, nobody), crashes=world.crashes + 1)


def put(world: World, at: int, rank: Rank) -> World:
    return replace(world, ranks=(*world.ranks[:at], rank, *world.ranks[at + 1 :]))


def coordinator_moves(world: World) -> Iterator[tuple[Label, World]]:
    for at, rank in enumerate(world.ranks):
        for message in rank.outbox:
            yield (at, "said", message), coordinate(world, Heard(at, message))
        if not rank.alive:
            yield (at, "is found gone"), coordinate(world, RankGone(at, "crash"))
    if world.coordinator.open:
        yield ("tick",), coordinate(world, Tick())


# --- what must hold ---


def check(world: World) -> None:
    """The invariants of docs/transactions.md that a state shows."""
    for page, told in enumerate(world.told):
        for at, rank in enumerate(world.ranks):
            if told in ("owned", "virtual") and rank.alive:
                found = rank.pages[page]
                must(found == told, f"page {page} is said to be {told}, at rank {at} it is {found}")
    decided: dict[int, tuple[int, ...]] = {}
    for rank in world.ranks:
        for number, pages in decisions(rank):
            one = decided.setdefault(number, pages)
            must(one == pages, f"transaction {number} is decided in two ways")


def decisions(rank: Rank) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Of each transaction what is on its way to the rank, and what has come."""
    for message in rank.inbox:
        if isinstance(message, Commit):
            yield message.id, message.pages
        elif isinstance(message, Abort):
            yield message.id, ()
    for entry in rank.participant.entries:
        if entry.decided is not None:
            yield entry.id, entry.decided


def is_over(world: World) -> bool:
    """Whether all transactions ended, or the pool failed, as it may."""
    return bool(world.coordinator.failure) or not world.coordinator.open


# --- what makes no difference ---


def canonical(world: World) -> World:
    """One of the worlds that behave alike."""
    coordinator = world.coordinator
    ranks = [_silenced(coordinator, at, rank) for at, rank in enumerate(world.ranks)]
    keys = [hash((rank, *_said_by(coordinator, at))) for at, rank in enumerate(ranks)]
    order = sorted(range(len(ranks)), key=keys.__getitem__)
    if order != sorted(order):
        opened = tuple(
            replace(
                each,
                votes=tuple(each.votes[at] for at in order),
                answers=tuple(each.answers[at] for at in order),
            )
            for each in coordinator.open
        )
        coordinator = replace(coordinator, open=opened)
    return replace(world, coordinator=coordinator, ranks=tuple(ranks[at] for at in order))


def _silenced(coordinator: Coordinator, at: int, rank: Rank) -> Rank:
    inbox, outbox = _inbox(rank), _outbox(coordinator, at, rank)
    if inbox is rank.inbox and outbox is rank.outbox:
        return rank
    return replace(rank, inbox=inbox, outbox=outbox)


def _said_by(coordinator: Coordinator, at: int) -> Iterator[Any]:
    for each in coordinator.open:
        yield each.votes[at], each.answers[at]


def _inbox(rank: Rank) -> frozenset[Any]:
    """Without what the participant would ignore for ever."""
    oldest = rank.participant.oldest
    if all(message.id >= oldest for message in rank.inbox):
        return rank.inbox
    return frozenset(message for message in rank.inbox if message.id >= oldest)


def _outbox(coordinator: Coordinator, at: int, rank: Rank) -> frozenset[Any]:
    """Without what the coordinator would ignore for ever."""
    awaited = {}
    for each in coordinator.open:
        voting = each.phase == "preparing"
        awaited[each.id] = (voting and each.votes[at] is None, each.answers[at] is None)
    keep = [
        m for m in rank.outbox if awaited.get(m.id, (False, False))[0 if isinstance(m, Vote) else 1]
    ]
    return rank.outbox if len(keep) == len(rank.outbox) else frozenset(keep)
