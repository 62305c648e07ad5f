"""The scheduler half's side: the coordinator, and a socket to each rank.

One thread talks to all ranks at once and counts time, only while a transaction is open: an engine
that neither grows nor shrinks costs nothing here. The engine's thread begins transactions and takes
in what came of them; neither waits for a rank.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from kvcached_core.txn.coordinator import Coordinator, Event, Heard, Send, Terms
from kvcached_core.txn.messages import MAX_PAGES, Begin, Ended, Failed, Kind, RankGone, Tick

from . import sockets
from .wire import BadPacket, Farewell, Hello, decode_at_coordinator, encode

TICK_S = 0.1
TERMS = Terms(retry=5, grow=50, shrink=1200, decide=300)
"""Half a second; five for the votes of growth, two minutes for a step that ends and its fence (a
rank that waits longer for a fence fails by itself); thirty to carry out what was decided."""
_CONNECT_S = 10.0
_JOIN_S = 5.0


class Transactions:
    """All methods may be called from any thread. After a failure nothing happens any more, and
    `failure` says why."""

    def __init__(
        self, folder: Path, instance: str, start: str, ranks: int, terms: Terms = TERMS
    ) -> None:
        """Connects to all ranks. Raises RuntimeError for one that does not listen or answer."""
        self._folder = folder
        self._hello = [Hello(instance, start, rank) for rank in range(ranks)]
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._coordinator = Coordinator(ranks, terms)
        self._unsent: list[Send] = []
        self._results: list[tuple[Begin, Ended]] = []
        self._asked: dict[int, Begin] = {}
        self._growing = 0  # pages
        self._progress = 0
        self._next_tick = 0.0
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._peers: list[socket.socket | None] = [None] * ranks
        self._awake, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        try:
            self._connect_all()
        except BaseException:
            self._end()
            raise
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="kvcached-txn", daemon=True)
        self._thread.start()

    # --- the engine's side ---

    @property
    def failure(self) -> str:
        return self._coordinator.failure

    def growing(self) -> int:
        """Pages that were to grow and of which take_ended() has not told. No lock, no system
        call."""
        return self._growing

    def is_open(self) -> bool:
        """Whether any transaction has not ended. No lock, no system call."""
        return bool(self._coordinator.open)

    def begin(self, kind: Kind, pages: Sequence[int], epoch: int = 0) -> None:
        """As many transactions as the pages need. Raises ValueError for pages in one that is open;
        after a failure does nothing."""
        for first in range(0, len(pages), MAX_PAGES):
            self._begin(Begin(kind, tuple(sorted(pages[first : first + MAX_PAGES])), epoch))
        self._wake()

    def has_ended(self) -> bool:
        """Whether take_ended() has any. No lock, no system call."""
        return bool(self._results)

    def take_ended(self) -> list[tuple[Begin, Ended]]:
        """What ended since the last call, each with what was asked."""
        with self._lock:
            taken, self._results = self._results, []
            for asked, _ in taken:
                self._growing -= len(asked.pages) if asked.kind == "grow" else 0
        return taken

    def progress(self) -> int:
        """Changes whenever a transaction ends, and at a failure."""
        return self._progress

    def wait_progress(self, seen: int, milliseconds: int) -> int:
        """Blocks until progress() differs from `seen` or the deadline passes; returns it."""
        with self._ended:
            self._ended.wait_for(lambda: self._progress != seen, milliseconds / 1000)
            return self._progress

    def close(self) -> None:
        """Ends the thread and the connections. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._wake()
        self._thread.join(_JOIN_S)

    def _begin(self, asked: Begin) -> None:
        with self._lock:
            if self._coordinator.failure:
                return
            number = self._coordinator.next_id
            if not self._coordinator.open:
                self._next_tick = time.monotonic() + TICK_S
            self._step(asked)
            self._asked[number] = asked
            self._growing += len(asked.pages) if asked.kind == "grow" else 0

    def _wake(self) -> None:
        sockets.send(self._wakes, b"x")

    # --- the coordinator; under the lock ---

    def _step(self, event: Event) -> None:
        self._coordinator, outputs = self._coordinator.step(event)
        for output in outputs:
            match output:
                case Send():
                    self._unsent.append(output)
                case Ended():
                    self._note(output)
                case Failed():
                    self._tell()

    def _note(self, ended: Ended) -> None:
        asked = self._asked.pop(ended.id)
        self._results.append((asked, ended))
        self._tell()

    def _tell(self) -> None:
        self._progress += 1
        self._ended.notify_all()

    # --- the thread ---

    def _serve(self) -> None:
        try:
            while not self._stopping:
                for key, _ in self._selector.select(self._time_left()):
                    self._look_at(key.fileobj, key.data)
                self._count_time()
                self._send()
        except Exception as error:
            self._give_up(f"the thread of its transactions ended: {error!r}")
        finally:
            self._end()

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._coordinator = replace(self._coordinator, open=(), failure=reason)
            self._tell()

    def _end(self) -> None:
        for rank in range(len(self._peers)):
            self._drop(rank)
        self._selector.close()
        self._awake.close()
        self._wakes.close()

    def _time_left(self) -> float | None:
        if not self._coordinator.open:
            return None
        return max(0.0, self._next_tick - time.monotonic())

    def _look_at(self, source: object, rank: int | None) -> None:
        if rank is None:
            self._awake.recv(4096)
            return
        peer = self._peers[rank]
        if peer is None or (packet := sockets.receive(peer)) is None:
            return
        try:
            message = decode_at_coordinator(packet) if packet else None
        except BadPacket:
            message = None
        if message is None or isinstance(message, Hello):
            self._drop(rank)
            self._reconnect(rank)
        elif isinstance(message, Farewell):
            self._lose(rank, message.reason)
        else:
            with self._lock:
                self._step(Heard(rank, message))

    def _count_time(self) -> None:
        """A thread that could not run for long has not let the ranks' time pass."""
        with self._lock:
            if not self._coordinator.open or time.monotonic() < self._next_tick:
                return
            self._next_tick = time.monotonic() + TICK_S
            self._step(Tick())

    def _send(self) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, []
        for output in unsent:
            peer = self._peers[output.rank]
            if peer is not None:
                sockets.send(peer, encode(output.message))

    # --- connections ---

    def _connect_all(self) -> None:
        for rank in range(len(self._peers)):
            try:
                self._connect(rank)
            except OSError as error:
                raise RuntimeError(
                    f"rank {rank} of engine {self._hello[rank].instance} does not take part in "
                    f"transactions: {error}"
                ) from None
        for rank in range(len(self._peers)):
            self._await_welcome(rank)

    def _connect(self, rank: int) -> None:
        hello = self._hello[rank]
        peer = sockets.connect(self._folder, rank, hello.start, _CONNECT_S)
        sockets.send(peer, encode(hello))
        self._peers[rank] = peer
        self._selector.register(peer, selectors.EVENT_READ, rank)

    def _await_welcome(self, rank: int) -> None:
        peer = self._peers[rank]
        assert peer is not None
        peer.settimeout(_CONNECT_S)
        try:
            answer = decode_at_coordinator(sockets.receive(peer) or b"")
        except BadPacket:
            answer = None
        if answer != self._hello[rank]:
            raise RuntimeError(
                f"rank {rank} of engine {self._hello[rank].instance} did not answer as itself "
                f"within {_CONNECT_S:.0f} s at {self._folder}"
            )
        peer.setblocking(False)

    def _reconnect(self, rank: int) -> None:
        """A connection ended; while its worker lives, the rank listens."""
        try:
            self._connect(rank)
            self._await_welcome(rank)
        except (OSError, RuntimeError) as error:
            self._lose(rank, f"its connection ended, and there is no other: {error}")

    def _drop(self, rank: int) -> None:
        peer, self._peers[rank] = self._peers[rank], None
        if peer is not None:
            self._selector.unregister(peer)
            peer.close()

    def _lose(self, rank: int, reason: str) -> None:
        self._drop(rank)
        with self._lock:
            self._step(RankGone(rank, reason))
