"""A rank's part in transactions: a pure state machine.

It remembers every transaction until the coordinator says that no rank needs to be asked again, so
that a message which comes twice, late or out of order does what it did the first time: nothing
more. An abort that overtakes its prepare is remembered too, or the prepare would take memory that
nobody gives back.

Once it has voted for pages it holds them until it is told the decision, however long that takes;
nobody waits for it meanwhile, and the end of the engine ends it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .messages import (
    Abort,
    Attempt,
    Attempted,
    Commit,
    Done,
    Fenced,
    Kind,
    Prepare,
    ProtocolError,
    Settle,
    Settled,
    ToRank,
    Vote,
    common,
    without,
)

Event = ToRank | Attempted | Settled | Fenced
Output = Vote | Done | Attempt | Settle
Phase = Literal["waiting", "preparing", "aborting", "prepared", "settling", "ended"]


class Entry(Struct, frozen=True, cache_hash=True):
    """One transaction. `waiting`: for the fence. `preparing`: the attempt is under way;
    `aborting`: and is to be undone. `settling`: the decision is being carried out."""

    id: int
    phase: Phase
    kind: Kind = "grow"
    pages: tuple[int, ...] = ()
    epoch: int = 0
    held: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    decided: tuple[int, ...] | None = None
    """The pages of the Commit, none for an Abort; None before."""


class Participant(Struct, frozen=True, cache_hash=True):
    fenced: int = 0
    """The last update whose fence has passed."""
    oldest: int = 1
    """Transactions before this one are forgotten, and messages of them ignored."""
    entries: tuple[Entry, ...] = ()

    def step(self, event: Event) -> tuple[Participant, tuple[Output, ...]]:
        """The state behind the event, and what is to be sent and done. Raises ProtocolError for a
        message that a coordinator in order cannot have sent to this rank."""
        match event:
            case Prepare():
                return self._forget(event.oldest)._prepare(event)
            case Commit():
                return self._decide(event.id, event.pages)
            case Abort():
                return self._decide(event.id, ())
            case Attempted():
                return self._attempted(event)
            case Settled():
                return self._settled(event)
            case Fenced():
                return self._fenced(event.epoch)

    # --- from the coordinator ---

    def _prepare(self, asked: Prepare) -> tuple[Participant, tuple[Output, ...]]:
        if asked.id < self.oldest:
            return self, ()
        entry = self._find(asked.id)
        if entry is None:
            ready = asked.kind == "grow" or asked.epoch <= self.fenced
            entry = Entry(
                id=asked.id,
                phase="preparing" if ready else "waiting",
                kind=asked.kind,
                pages=asked.pages,
                epoch=asked.epoch,
            )
            return self._with(entry), _attempt(entry) if ready else ()
        if entry.phase == "prepared":
            return self, (Vote(entry.id, entry.held, entry.lost),)
        return self, ()

    def _decide(
        self, number: int, pages: tuple[int, ...]
    ) -> tuple[Participant, tuple[Output, ...]]:
        if number < self.oldest:
            return self, ()
        entry = self._find(number)
        if entry is None:
            _must(not pages, f"commit of transaction {number}, of which nothing was heard")
            return self._end(Entry(id=number, phase="ended", decided=()))
        if entry.decided is not None:
            same = pages == entry.decided
            _must(same, f"transaction {number}: {pages} are to be committed after {entry.decided}")
            return self, (Done(number, entry.lost),) if entry.phase == "ended" else ()
        entry = replace(entry, decided=pages)
        if entry.phase == "prepared":
            return self._settle(entry)
        _must(not pages, f"commit of transaction {number}, which is not prepared here")
        if entry.phase == "preparing":
            return self._with(replace(entry, phase="aborting")), ()
        return self._end(entry)

    # --- from whoever acts for it ---

    def _fenced(self, epoch: int) -> tuple[Participant, tuple[Output, ...]]:
        state: Participant = replace(self, fenced=max(self.fenced, epoch))
        outputs: tuple[Output, ...] = ()
        for entry in self.entries:
            if entry.phase == "waiting" and entry.epoch <= state.fenced:
                state = state._with(replace(entry, phase="preparing"))
                outputs += _attempt(entry)
        return state, outputs

    def _attempted(self, result: Attempted) -> tuple[Participant, tuple[Output, ...]]:
        entry = self._find(result.id)
        if entry is None or entry.phase not in ("preparing", "aborting"):
            raise ProtocolError(f"transaction {result.id} was not attempted here")
        aborted = entry.phase == "aborting"
        entry = replace(entry, phase="prepared", held=result.held, lost=result.lost)
        if aborted:
            return self._settle(entry)
        return self._with(entry), (Vote(entry.id, entry.held, entry.lost),)

    def _settled(self, result: Settled) -> tuple[Participant, tuple[Output, ...]]:
        entry = self._find(result.id)
        if entry is None or entry.phase != "settling":
            raise ProtocolError(f"transaction {result.id} was not to be settled here")
        return self._end(replace(entry, lost=tuple(sorted({*entry.lost, *result.lost}))))

    # --- inside ---

    def _settle(self, entry: Entry) -> tuple[Participant, tuple[Output, ...]]:
        """The decision comes true: a page of a Commit is owned where it grew and released where it
        shrank; any other the other way round."""
        if not entry.held:
            return self._end(entry)
        taken = common(entry.held, entry.decided or ())
        rest = without(entry.held, taken)
        own, release = (taken, rest) if entry.kind == "grow" else (rest, taken)
        return self._with(replace(entry, phase="settling")), (Settle(entry.id, own, release),)

    def _end(self, entry: Entry) -> tuple[Participant, tuple[Output, ...]]:
        ended = replace(entry, phase="ended", held=())
        return self._with(ended), (Done(entry.id, entry.lost),)

    def _find(self, number: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.id == number), None)

    def _with(self, entry: Entry) -> Participant:
        others = [other for other in self.entries if other.id != entry.id]
        entries = sorted([*others, entry], key=lambda each: each.id)
        return replace(self, entries=tuple(entries))

    def _forget(self, oldest: int) -> Participant:
        if oldest <= self.oldest:
            return self
        kept = tuple(entry for entry in self.entries if entry.id >= oldest)
        return replace(self, oldest=oldest, entries=kept)


def _attempt(entry: Entry) -> tuple[Output, ...]:
    return (Attempt(entry.id, entry.kind, entry.pages),)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ProtocolError(otherwise)
