"""The scheduler half's part in transactions: a pure state machine.

A transaction is prepared by every rank, then decided once: the pages that every rank has prepared
are committed, the others aborted. The decision is repeated, with the same id, until every rank has
answered it; only then are the pages anybody's to use, or gone. A rank that does not vote in time
has refused. One that does not answer a decision in time, or is gone, ends the pool: nobody knows
what it holds.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .messages import (
    MAX_PAGES,
    Abort,
    Begin,
    Commit,
    Done,
    Ended,
    Failed,
    Kind,
    Prepare,
    RankGone,
    Tick,
    ToCoordinator,
    ToRank,
    Vote,
    common,
    union,
    without,
)


class Heard(Struct, frozen=True, cache_hash=True):
    """A message of a rank."""

    rank: int
    message: ToCoordinator


class Send(Struct, frozen=True, cache_hash=True):
    rank: int
    message: ToRank


Event = Begin | Heard | Tick | RankGone
Output = Send | Ended | Failed


class Terms(Struct, frozen=True, cache_hash=True):
    """Times in ticks."""

    retry: int
    """An unanswered message is repeated after each."""
    grow: int
    """For all votes of a transaction that grows."""
    shrink: int
    """The same for one that shrinks: ranks wait for a step and its fence."""
    decide: int
    """For all answers to a decision."""


class Open(Struct, frozen=True, cache_hash=True):
    """A transaction that has not ended."""

    id: int
    kind: Kind
    pages: tuple[int, ...]
    epoch: int
    votes: tuple[Vote | None, ...]
    """By rank."""
    answers: tuple[Done | None, ...]
    """By rank, to the decision."""
    phase: Literal["preparing", "deciding"] = "preparing"
    commit: tuple[int, ...] = ()
    """The decision; none aborts."""
    age: int = 0
    """Ticks in this phase."""


class Coordinator(Struct, frozen=True, cache_hash=True):
    ranks: int
    terms: Terms
    next_id: int = 1
    open: tuple[Open, ...] = ()
    failure: str = ""
    """Why the pool must not be used any more; nothing is done after it is set."""

    def step(self, event: Event) -> tuple[Coordinator, tuple[Output, ...]]:
        """The state behind the event, and what is to be sent and told. Raises ValueError for a
        Begin of pages that are in a transaction, or of none or too many."""
        if self.failure:
            return self, ()
        match event:
            case Begin():
                return self._begin(event)
            case Heard(rank, Vote() as vote):
                return self._heard_vote(rank, vote)
            case Heard(rank, Done() as done):
                return self._heard_done(rank, done)
            case Tick():
                return self._tick()
            case RankGone():
                return self._fail(f"rank {event.rank} is gone: {event.reason}")
        raise TypeError(f"no event of a coordinator: {event!r}")

    @property
    def oldest(self) -> int:
        """The first id that is not ended."""
        return self.open[0].id if self.open else self.next_id

    # --- a transaction's way ---

    def _begin(self, asked: Begin) -> tuple[Coordinator, tuple[Output, ...]]:
        if not 0 < len(asked.pages) <= MAX_PAGES:
            raise ValueError(
                f"a transaction of {len(asked.pages)} pages; it takes 1 to {MAX_PAGES}"
            )
        for other in self.open:
            if both := common(other.pages, asked.pages):
                raise ValueError(f"pages {both} are in transaction {other.id} already")
        nobody = (None,) * self.ranks
        begun = Open(self.next_id, asked.kind, asked.pages, asked.epoch, nobody, nobody)
        state = replace(self, next_id=self.next_id + 1)._with(begun)
        return state, state._say(begun)

    def _heard_vote(self, rank: int, vote: Vote) -> tuple[Coordinator, tuple[Output, ...]]:
        found = self._find(vote.id)
        if found is None or found.phase != "preparing" or found.votes[rank] is not None:
            return self, ()
        found = replace(found, votes=_put(found.votes, rank, vote))
        if None in found.votes:
            return self._with(found), ()
        return self._decide(found, _prepared_by_all(found))

    def _decide(
        self, found: Open, commit: tuple[int, ...]
    ) -> tuple[Coordinator, tuple[Output, ...]]:
        found = replace(found, phase="deciding", commit=commit, age=0)
        return self._with(found), self._say(found)

    def _heard_done(self, rank: int, done: Done) -> tuple[Coordinator, tuple[Output, ...]]:
        found = self._find(done.id)
        if found is None or found.phase != "deciding":
            return self, ()
        found = replace(found, answers=_put(found.answers, rank, done))
        if None in found.answers:
            return self._with(found), ()
        rest = tuple(each for each in self.open if each.id != found.id)
        return replace(self, open=rest), (_ended(found),)

    # --- time ---

    def _tick(self) -> tuple[Coordinator, tuple[Output, ...]]:
        state = self
        outputs: tuple[Output, ...] = ()
        for each in self.open:
            older = replace(each, age=each.age + 1)
            if older.age >= self._deadline(older):
                if older.phase == "deciding":
                    return self._fail(_unanswered(older))
                state, said = state._decide(older, ())
            else:
                state = state._with(older)
                said = self._say(older) if older.age % self.terms.retry == 0 else ()
            outputs += said
        return state, outputs

    def _deadline(self, found: Open) -> int:
        if found.phase == "deciding":
            return self.terms.decide
        return self.terms.grow if found.kind == "grow" else self.terms.shrink

    def _fail(self, reason: str) -> tuple[Coordinator, tuple[Output, ...]]:
        """What nobody has decided is aborted once, so that the living give it back."""
        aborts = [self._say(replace(each, phase="deciding")) for each in self.open if _open(each)]
        state: Coordinator = replace(self, open=(), failure=reason)
        return state, (*(each for some in aborts for each in some), Failed(reason))

    # --- inside ---

    def _say(self, found: Open) -> tuple[Output, ...]:
        """What is asked of each rank that has not answered it."""
        message: ToRank
        heard: tuple[Vote | Done | None, ...]
        if found.phase == "preparing":
            message = Prepare(found.id, found.kind, found.pages, found.epoch, self.oldest)
            heard = found.votes
        else:
            message = Commit(found.id, found.commit) if found.commit else Abort(found.id)
            heard = found.answers
        return tuple(Send(rank, message) for rank, said in enumerate(heard) if said is None)

    def _find(self, number: int) -> Open | None:
        return next((each for each in self.open if each.id == number), None)

    def _with(self, found: Open) -> Coordinator:
        others = [other for other in self.open if other.id != found.id]
        return replace(self, open=tuple(sorted([*others, found], key=lambda each: each.id)))


def _open(found: Open) -> bool:
    return found.phase == "preparing"


def _put(heard: tuple, rank: int, message: object) -> tuple:  # type: ignore[type-arg]
    return (*heard[:rank], message, *heard[rank + 1 :])


def _prepared_by_all(found: Open) -> tuple[int, ...]:
    """Where memory goes back, a page that some rank lost goes back at the others."""
    votes = [vote for vote in found.votes if vote is not None]
    if found.kind == "grow":
        return common(found.pages, *(vote.held for vote in votes))
    return common(found.pages, *(union(vote.held, vote.lost) for vote in votes))


def _ended(found: Open) -> Ended:
    said = [each for each in (*found.votes, *found.answers) if each is not None]
    lost = union(*(each.lost for each in said))
    taken = without(found.commit, lost)
    rest = without(found.pages, (*found.commit, *lost))
    owned, virtual = (taken, rest) if found.kind == "grow" else (rest, taken)
    return Ended(found.id, owned, virtual, lost)


def _unanswered(found: Open) -> str:
    silent = [str(rank) for rank, answer in enumerate(found.answers) if answer is None]
    what = "commit" if found.commit else "abort"
    return (
        f"rank {', '.join(silent)} did not answer the {what} of transaction {found.id} "
        f"({found.kind} of {len(found.pages)} pages) in time"
    )
