"""Machines with one fault each, which the model check, a trace and a property test must find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from kvcached_core.txn import Coordinator, Done, Participant, Prepare


def _commit_early(self: Coordinator, rank: int, vote: Any) -> Any:
    """Decides by the first vote instead of all."""
    found = self._find(vote.id)
    if found is None or found.phase != "preparing":
        return self, ()
    votes = (*found.votes[:rank], vote, *found.votes[rank + 1 :])
    return self._decide(replace(found, votes=votes), vote.held)


_prepare, _decide = Participant._prepare, Participant._decide


def _skip_fence(self: Participant, asked: Prepare) -> Any:
    """Acts at once, whatever steps may use the pages yet."""
    return _prepare(self, replace(asked, epoch=0))


def _forget_abort(self: Participant, number: int, pages: tuple[int, ...]) -> Any:
    """An abort before its prepare is answered, and nothing kept of it."""
    if not pages and number >= self.oldest and self._find(number) is None:
        return self, (Done(number, ()),)
    return _decide(self, number, pages)


MUTANTS: dict[str, tuple[type, str, Any]] = {
    "commits before all have prepared": (Coordinator, "_heard_vote", _commit_early),
    "skips the fence": (Participant, "_prepare", _skip_fence),
    "forgets an abort": (Participant, "_decide", _forget_abort),
}


@contextmanager
def mutant(name: str) -> Iterator[None]:
    machine, method, wrong = MUTANTS[name]
    with patch.object(machine, method, wrong):
        yield
