"""Shared memory in which the first rank announces and the others read: a log, in order.

One writer a word. To read what is there costs no system call. The file has no name any more once
all have opened it, so nothing of it outlives the engine.
"""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

_WORD = 8
_LINE = 8  # words
_HEAD, _PID = 0, 1
_TAIL, _FLAG, _STEP = 0, 1, 2  # of each rank
_WRAP = 2**64 - 1
_LEAST_LOG = 1 << 20
_SLOTS, _SLOT_BYTES = 32, 2048
_NAP_S = 0.0001
PATIENCE_S = 60.0
"""A rank that is not heard of for so long hangs."""


class Board:
    """Times out with RuntimeError, naming the rank that was waited for."""

    def __init__(self, file: int, rank: int, ranks: int, log_bytes: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self.patience = PATIENCE_S
        self._size = log_bytes
        self._memory = mmap.mmap(file, _file_bytes(ranks, log_bytes))
        self._bytes = memoryview(self._memory)
        self._words = self._bytes[: _LINE * _WORD * (1 + ranks)].cast("Q")
        self._slots = _LINE * _WORD * (1 + ranks)
        self._log = self._slots + ranks * _SLOTS * _SLOT_BYTES
        self._tail = 0
        self._leader: int | None = None
        if rank == 0:
            self._words[_PID] = os.getpid()
        else:
            self._leader = os.pidfd_open(self._words[_PID])

    @classmethod
    def make(cls, path: Path, ranks: int, pages: int) -> Board:
        """The first rank's, mode 0600. `pages`: as many ids must fit in an entry."""
        log_bytes = max(_LEAST_LOG, (16 * pages + 7) // _WORD * _WORD)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, _file_bytes(ranks, log_bytes))
            return cls(file, 0, ranks, log_bytes)
        finally:
            os.close(file)

    @classmethod
    def open(cls, path: Path, rank: int, ranks: int) -> Board:
        """Another rank's. Raises OSError."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            log_bytes = os.fstat(file).st_size - _file_bytes(ranks, 0)
            return cls(file, rank, ranks, log_bytes)
        finally:
            os.close(file)

    def close(self) -> None:
        """Idempotent. Whoever waits for this rank goes on waiting."""
        if self._leader is not None:
            os.close(self._leader)
            self._leader = None

    # --- the log ---

    def announce(self, entry: bytes) -> None:
        """At the first rank only. Waits where others are far behind."""
        need = _WORD + -(-len(entry) // _WORD) * _WORD
        head = self._words[_HEAD]
        skip = self._size - head % self._size
        skip = skip if skip < need else 0
        if need + skip > self._size:
            raise RuntimeError(f"an announcement of {len(entry)} bytes is longer than the log")
        self._await_room(head + skip + need - self._size)
        if skip:
            self._put(head, _WRAP)
            head += skip
        at = self._log + head % self._size + _WORD
        self._bytes[at : at + len(entry)] = entry
        self._put(head, len(entry))
        self._words[_HEAD] = head + need

    def _await_room(self, least: int) -> None:
        """Until all have read that far."""
        for rank in range(1, self.ranks):
            self._await(partial(self._has_come, rank, _TAIL, least), rank)

    def peek(self) -> bytes | None:
        """The next entry, if there is one."""
        if self._words[_HEAD] == self._tail:
            return None
        if self._get(self._tail) == _WRAP:
            self._tail += self._size - self._tail % self._size
        at = self._log + self._tail % self._size + _WORD
        return bytes(self._bytes[at : at + self._get(self._tail)])

    def take(self) -> None:
        """The next entry has been read."""
        self._tail += _WORD + -(-self._get(self._tail) // _WORD) * _WORD
        self._words[self._of(self.rank, _TAIL)] = self._tail

    def await_entry(self) -> bytes:
        """The next entry, waited for."""
        self._await(lambda: self._words[_HEAD] != self._tail, 0)
        entry = self.peek()
        assert entry is not None
        return entry

    def _put(self, position: int, word: int) -> None:
        at = self._log + position % self._size
        self._bytes[at : at + _WORD] = word.to_bytes(_WORD, "little")

    def _get(self, position: int) -> int:
        at = self._log + position % self._size
        return int.from_bytes(self._bytes[at : at + _WORD], "little")

    # --- a word of each rank ---

    def raise_flag(self, number: int) -> None:
        """Of this rank; they only rise."""
        self._words[self._of(self.rank, _FLAG)] = number

    def least_flag(self) -> int:
        return min(self._words[self._of(rank, _FLAG)] for rank in range(self.ranks))

    # --- what each rank says of its steps ---

    def post(self, step: int, text: bytes) -> None:
        """Steps count from 1. Waits where another rank is so far behind that it could miss it."""
        for rank in range(self.ranks):
            self._await(partial(self._has_come, rank, _STEP, step - _SLOTS // 2), rank)
        if len(text) > _SLOT_BYTES - _WORD:
            raise RuntimeError(f"a post of {len(text)} bytes is longer than its place")
        at = self._slot(self.rank, step)
        self._bytes[at : at + _WORD] = len(text).to_bytes(_WORD, "little")
        self._bytes[at + _WORD : at + _WORD + len(text)] = text
        self._words[self._of(self.rank, _STEP)] = step

    def posted(self, rank: int, step: int) -> bytes | None:
        """None while the rank has not come that far."""
        if self._words[self._of(rank, _STEP)] < step:
            return None
        at = self._slot(rank, step)
        size = int.from_bytes(self._bytes[at : at + _WORD], "little")
        return bytes(self._bytes[at + _WORD : at + _WORD + size])

    def _slot(self, rank: int, step: int) -> int:
        return self._slots + (rank * _SLOTS + step % _SLOTS) * _SLOT_BYTES

    # --- inside ---

    def _of(self, rank: int, word: int) -> int:
        return _LINE * (1 + rank) + word

    def _has_come(self, rank: int, word: int, least: int) -> bool:
        return self._words[self._of(rank, word)] >= least

    def _await(self, holds: Callable[[], bool], rank: int) -> None:
        if holds():
            return
        end = time.monotonic() + self.patience
        while not holds():
            if self._leader is not None and _has_ended(self._leader) and not holds():
                raise RuntimeError("rank 0, which announces what all ranks do, has ended")
            if time.monotonic() > end:
                raise RuntimeError(f"rank {rank} has not been heard of for {self.patience:.0f} s")
            time.sleep(_NAP_S)


def _file_bytes(ranks: int, log_bytes: int) -> int:
    return _LINE * _WORD * (1 + ranks) + ranks * _SLOTS * _SLOT_BYTES + log_bytes


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))
