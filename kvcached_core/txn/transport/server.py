"""A rank's side: its participant, behind a socket, acting through its Rank.

One thread; it lives from construction to close(), and so does the listener: who finds nobody
listening knows that the worker is gone.
"""

from __future__ import annotations

import selectors
import socket
import threading
from pathlib import Path

from kvcached_core.budget import Rank
from kvcached_core.txn.messages import (
    Attempt,
    Attempted,
    Done,
    Fenced,
    Settle,
    Settled,
    ToRank,
    Vote,
)
from kvcached_core.txn.participant import Event, Output, Participant

from . import sockets
from .wire import BadPacket, Farewell, Hello, decode_at_rank, encode

_JOIN_S = 5.0
_STRANGERS = 8  # at a time


class RankServer:
    """What the participant asks of the rank is queued for its background thread, which makes the
    driver calls; an update's fence is known from `Rank.retire()` of no pages with its epoch."""

    def __init__(self, folder: Path, me: Hello, rank: Rank) -> None:
        """Raises OSError if it cannot listen."""
        self._folder = folder
        self._me = me
        self._rank = rank
        self._participant = Participant()
        self._peer: socket.socket | None = None  # the coordinator
        self._strangers: list[socket.socket] = []  # who have not said whom they mean
        self._stopping = False
        self.failure = ""
        self._selector = selectors.DefaultSelector()
        self._awake, self._wakes = socket.socketpair()
        self._listener = sockets.listen(folder, me.rank, me.start)
        for source in (self._listener, self._awake, rank.outcomes_fd()):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="kvcached-txn-rank", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent. To be called before the rank is closed."""
        if self._stopping:
            return
        self._stopping = True
        sockets.send(self._wakes, b"x")  # the thread has ended if it failed
        self._thread.join(_JOIN_S)

    # --- the thread ---

    def _serve(self) -> None:
        try:
            while not self._stopping:
                for key, _ in self._selector.select():
                    self._look_at(key.fileobj)
        except Exception as error:
            self.failure = str(error)
            self._say(Farewell(self.failure[:1000]))
        finally:
            self._end()

    def _end(self) -> None:
        sockets.unlink(self._folder, self._me.rank, self._me.start)
        for peer in (self._peer, *self._strangers):
            if peer is not None:
                peer.close()
        self._listener.close()
        self._selector.close()
        self._awake.close()
        self._wakes.close()

    def _look_at(self, source: object) -> None:
        if source is self._listener:
            self._accept()
        elif source in self._strangers:
            self._meet(source)  # type: ignore[arg-type]
        elif source is self._peer and self._peer is not None:
            self._read(self._peer)
        elif source == self._rank.outcomes_fd():
            self._take_outcomes()

    def _accept(self) -> None:
        peer = sockets.accept(self._listener)
        if peer is None:
            return
        self._strangers.append(peer)
        self._selector.register(peer, selectors.EVENT_READ)
        if len(self._strangers) > _STRANGERS:
            self._drop(self._strangers.pop(0))

    def _meet(self, stranger: socket.socket) -> None:
        """Whoever says last that this rank is meant is the coordinator."""
        packet = sockets.receive(stranger)
        if packet is None:
            return
        self._strangers.remove(stranger)
        if _decoded(packet) != self._me:
            self._drop(stranger)
            return
        former, self._peer = self._peer, stranger
        if former is not None:
            self._drop(former)
        self._say(self._me)

    def _drop(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        peer.close()

    def _read(self, peer: socket.socket) -> None:
        packet = sockets.receive(peer)
        if packet is None:
            return
        message = _decoded(packet)
        if message is None or isinstance(message, Hello):
            self._peer = None
            self._drop(peer)
        else:
            self._step(message)

    def _say(self, message: Hello | Farewell | Vote | Done) -> None:
        if self._peer is not None:
            sockets.send(self._peer, encode(message))

    def _take_outcomes(self) -> None:
        for kind, number, held, lost in self._rank.take_outcomes():
            if kind == "attempted":
                self._step(Attempted(number, tuple(held), tuple(lost)))
            elif kind == "settled":
                self._step(Settled(number, tuple(lost)))
            else:
                self._step(Fenced(number))

    def _step(self, event: Event) -> None:
        self._participant, outputs = self._participant.step(event)
        for output in outputs:
            self._act(output)

    def _act(self, output: Output) -> None:
        match output:
            case Attempt(number, "grow", pages):
                self._rank.take(number, pages)
            case Attempt(number, _, pages):
                self._rank.unmap(number, pages)
            case Settle(number, own, release):
                self._rank.settle(number, own, release)
            case Vote() | Done():
                self._say(output)


def _decoded(packet: bytes) -> Hello | ToRank | None:
    """None for the end of a connection, and for nonsense."""
    try:
        return decode_at_rank(packet) if packet else None
    except BadPacket:
        return None
