"""What coordinator and participants say to each other, and to those who carry it out.

Messages are named by the transaction's id, unique for the life of the instance. All of them may be
lost, doubled, delayed and reordered. A message has no sender: whoever receives it knows the
connection. Pages are ids, ascending, without doubles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

MAX_PAGES = 4096
"""Of one transaction, so that messages are bounded: more pages are more transactions."""

Id: TypeAlias = Annotated[int, Meta(ge=1)]
Page: TypeAlias = Annotated[int, Meta(ge=0)]
Pages: TypeAlias = Annotated[tuple[Page, ...], Meta(max_length=MAX_PAGES)]
Kind: TypeAlias = Literal["grow", "shrink"]


class _Message(Struct, frozen=True, cache_hash=True, array_like=True, forbid_unknown_fields=True):
    pass


# --- coordinator to participant ---


class Prepare(_Message, tag="prepare", frozen=True):
    """Grow: lease and create memory for the pages. Shrink: behind the fence of `epoch`, unmap them
    and retain the memory. What could be had is told by a Vote."""

    id: Id
    kind: Kind
    pages: Pages
    epoch: int
    """Of the update after which no step uses the pages; 0 for growing."""
    oldest: Id
    """No smaller id counts any more: every rank has answered its decision."""


class Commit(_Message, tag="commit", frozen=True):
    """Grow: the pages are owned. Shrink: their memory is released. The rest as if aborted."""

    id: Id
    pages: Pages


class Abort(_Message, tag="abort", frozen=True):
    """Grow: what was created is released. Shrink: the pages stay owned."""

    id: Id


# --- participant to coordinator ---


class Vote(_Message, tag="vote", frozen=True):
    id: Id
    held: Pages
    """Prepared here; none is a refusal."""
    lost: Pages
    """In quarantine here: the driver's state of them is unknown."""


class Done(_Message, tag="done", frozen=True):
    """The decision is carried out."""

    id: Id
    lost: Pages
    """Whose memory the driver did not take back."""


# --- participant to whoever acts for it, and back ---


class Attempt(_Message, frozen=True):
    """Take memory for the pages (grow), or unmap them and keep it (shrink)."""

    id: Id
    kind: Kind
    pages: Pages


class Attempted(_Message, frozen=True):
    id: Id
    held: Pages
    lost: Pages


class Settle(_Message, frozen=True):
    """Pages that are prepared: some are owned from now on, some are released."""

    id: Id
    own: Pages
    release: Pages


class Settled(_Message, frozen=True):
    id: Id
    lost: Pages


class Fenced(_Message, frozen=True):
    """No work up to and with this update uses pages any more that it was to retire."""

    epoch: int


# --- coordinator to whoever asked, and back ---


class Begin(_Message, frozen=True):
    kind: Kind
    pages: Pages
    epoch: int = 0


class Ended(_Message, frozen=True):
    """Each page of the transaction is in one of the three."""

    id: Id
    owned: Pages
    """By every rank."""
    virtual: Pages
    """No rank holds memory for it."""
    lost: Pages
    """In quarantine somewhere: nobody may use it any more."""


class Failed(_Message, frozen=True):
    """No agreement can be reached: the pool must not be used any more."""

    reason: str


class Tick(_Message, frozen=True):
    """A unit of time has passed."""


class RankGone(_Message, frozen=True):
    """No message of this rank comes any more."""

    rank: int
    reason: str


class ProtocolError(Exception):
    """A message that cannot be: whoever gets it must not go on."""


def union(*sets: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set().union(*sets)))


def without(pages: Iterable[int], gone: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(pages).difference(gone)))


def common(pages: Iterable[int], *others: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(pages).intersection(*others)))


ToRank = Prepare | Commit | Abort
ToCoordinator = Vote | Done
