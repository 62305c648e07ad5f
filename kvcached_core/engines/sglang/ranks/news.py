"""What the first rank announces."""

from __future__ import annotations

import msgspec

from kvcached_core.instance.agreement import Changes


class News(msgspec.Struct, frozen=True, array_like=True):
    """What there is outside, as the first rank saw it, and from which moment all go by it."""

    turn: int = 0
    """Of the scheduler's iterations, which all ranks count alike."""
    round: int = 0
    """0: known before the iteration begins. Others are waited for within it."""
    free: int = 0
    """Pages, as the next three."""
    reachable: int = 0
    fair: int = 0
    asked: int = 0
    event: tuple[int, ...] = ()
    wanted: bool = False
    """Whether others want memory."""
    call: bool = False
    """Whether an idle engine is to look around in this iteration."""
    awake: int = 0
    """The last attempt at waking in which every rank had its floor again."""
    vain: int = 0
    """The last one that was given up: who has its floor gives it back."""
    left: int = 0
    """Milliseconds left of the wait that the round is part of."""
    grown: int = 0
    """Pages that were to grow and of which this tells."""
    owned: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    retired: int = 0
    epoch: int = 0

    @property
    def at(self) -> tuple[int, int]:
        return self.turn, self.round

    def says_more_than(self, other: News) -> bool:
        """Whether anything is new, but the moment."""
        if self.grown or self.retired or self.lost or self.call:
            return True
        return _lasting(self) != _lasting(other)

    def add_to(self, changes: Changes) -> None:
        changes.owned += self.owned
        changes.refused += self.refused
        changes.released += self.released
        changes.kept += self.kept
        changes.lost += self.lost
        changes.retired += self.retired
        changes.epoch = max(changes.epoch, self.epoch)


def _lasting(news: News) -> tuple[object, ...]:
    numbers = news.free, news.reachable, news.fair, news.asked
    return *numbers, news.event, news.wanted, news.awake, news.vain
