"""Shared memory in which the first rank announces and the others read: a log, in order.

One writer a word. To read what is there costs no system call. The file has no name any more once
all have opened it, so nothing of it outlives the engine.

Errors, of any call: `BoardError` where the file is at fault, and a RuntimeError that names the rank
where one is that was waited for, has ended, or was said something to that does not fit. No other,
and nothing has been taken in then: the same call finds the same again.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvcached_core.engines.sglang.ranks.board_file import (
    HEAD,
    LINE,
    PID,
    SLOT_BYTES,
    SLOTS,
    WORD,
    BoardError,
    BoardFile,
)

_TAIL, _FLAG, _STEP = 0, 1, 2  # of each rank
_WRAP = 2**64 - 1
_LEAST_LOG = 1 << 20
_NAP_S = 0.0001
PATIENCE_S = 60.0
"""A rank that is not heard of for so long hangs."""


class Board:
    """One rank's view. Called by one thread at a time."""

    def __init__(self, file: BoardFile, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self.patience = PATIENCE_S
        self._file = file
        self._words, self._bytes = file.words, file.bytes
        self._size = file.log_bytes
        self._tail = self._next = 0
        self._leader = None if rank == 0 else self._open_leader()

    @classmethod
    def make(cls, path: Path, ranks: int, pages: int) -> Board:
        """The first rank's, mode 0600. `pages`: as many ids must fit in an entry."""
        log_bytes = max(_LEAST_LOG, (16 * pages + 7) // WORD * WORD)
        return cls(BoardFile.make(path, ranks, log_bytes), 0, ranks)

    @classmethod
    def open(cls, path: Path, rank: int, ranks: int) -> Board:
        """Another rank's, of the engine that made it."""
        return cls(BoardFile.open(path, ranks), rank, ranks)

    def _open_leader(self) -> int:
        try:
            return os.pidfd_open(self._words[PID])
        except ProcessLookupError:
            raise RuntimeError(_LEADER_ENDED) from None
        except OSError as error:
            pid = self._words[PID]
            raise BoardError(
                self._file.path, f"names process {pid}, not to be watched: {error.strerror}"
            ) from None

    def close(self) -> None:
        """Idempotent. Whoever waits for this rank goes on waiting."""
        if self._leader is not None:
            os.close(self._leader)
            self._leader = None

    def unreadable(self, what: str) -> BoardError:
        """What a reader raises for bytes that the board handed over and that mean nothing."""
        return BoardError(self._file.path, f"holds {what}")

    # --- the log ---

    def announce(self, entry: bytes) -> None:
        """At the first rank only. Waits where others are far behind."""
        need = WORD + -(-len(entry) // WORD) * WORD
        head = self._words[HEAD]
        skip = self._size - head % self._size
        skip = skip if skip < need else 0
        if need + skip > self._size:
            raise RuntimeError(
                f"rank {self.rank} announces {len(entry)} bytes, more than the log has room for"
            )
        self._await_room(head + skip + need - self._size)
        if skip:
            self._put(head, _WRAP)
            head += skip
        at = self._file.log + head % self._size + WORD
        self._bytes[at : at + len(entry)] = entry
        self._put(head, len(entry))
        self._words[HEAD] = head + need

    def _await_room(self, least: int) -> None:
        """Until all have read that far."""
        for rank in range(1, self.ranks):
            self._await(partial(self._has_come, rank, _TAIL, least), rank)

    def peek(self) -> bytes | None:
        """The next entry, if there is one."""
        head = self._words[HEAD]
        if head == self._tail:
            return None
        at = self._tail
        self._check(at, WORD, head)
        size = self._get(at)
        if size == _WRAP:
            at += self._size - at % self._size
            self._check(at, WORD, head)
            size = self._get(at)
        end = at + WORD + -(-size // WORD) * WORD
        self._check(at, end - at, head)
        self._next = end
        start = self._file.log + at % self._size + WORD
        return bytes(self._bytes[start : start + size])

    def _check(self, at: int, need: int, head: int) -> None:
        """Whether an entry of `need` bytes can be there, when the log goes as far as `head`."""
        fits = at + need <= head <= self._tail + self._size
        if head % WORD or not fits or at % self._size + need > self._size:
            raise self.unreadable(
                f"an entry of {need} bytes at {at} of a log of {self._size} that is read up to "
                f"{self._tail} and written up to {head}"
            )

    def take(self) -> None:
        """The entry that `peek` or `await_entry` gave has been read."""
        self._tail = self._next
        self._words[self._of(self.rank, _TAIL)] = self._tail

    def await_entry(self) -> bytes:
        """The next entry, waited for."""
        self._await(lambda: self._words[HEAD] != self._tail, 0)
        entry = self.peek()
        assert entry is not None
        return entry

    def _put(self, position: int, word: int) -> None:
        at = self._file.log + position % self._size
        self._bytes[at : at + WORD] = word.to_bytes(WORD, "little")

    def _get(self, position: int) -> int:
        at = self._file.log + position % self._size
        return int.from_bytes(self._bytes[at : at + WORD], "little")

    # --- a word of each rank ---

    def raise_flag(self, number: int) -> None:
        """Of this rank; they only rise."""
        self._words[self._of(self.rank, _FLAG)] = number

    def least_flag(self) -> int:
        return min(self._flags())

    def most_flag(self) -> int:
        return max(self._flags())

    def _flags(self) -> list[int]:
        return [self._words[self._of(rank, _FLAG)] for rank in range(self.ranks)]

    # --- what each rank says of its steps ---

    def post(self, step: int, text: bytes) -> None:
        """Steps count from 1. Waits where another rank is so far behind that it could miss it."""
        for rank in range(self.ranks):
            self._await(partial(self._has_come, rank, _STEP, step - SLOTS // 2), rank)
        if len(text) > SLOT_BYTES - WORD:
            raise RuntimeError(
                f"rank {self.rank} posts {len(text)} bytes, more than its slot has room for"
            )
        at = self._slot(self.rank, step)
        self._bytes[at : at + WORD] = len(text).to_bytes(WORD, "little")
        self._bytes[at + WORD : at + WORD + len(text)] = text
        self._words[self._of(self.rank, _STEP)] = step

    def posted(self, rank: int, step: int) -> bytes | None:
        """None while the rank has not come that far."""
        if self._words[self._of(rank, _STEP)] < step:
            return None
        at = self._slot(rank, step)
        size = int.from_bytes(self._bytes[at : at + WORD], "little")
        if size > SLOT_BYTES - WORD:
            raise self.unreadable(f"{size} bytes of rank {rank} on step {step}, in {SLOT_BYTES}")
        return bytes(self._bytes[at + WORD : at + WORD + size])

    def _slot(self, rank: int, step: int) -> int:
        return self._file.slots + (rank * SLOTS + step % SLOTS) * SLOT_BYTES

    # --- inside ---

    def _of(self, rank: int, word: int) -> int:
        return LINE * (1 + rank) + word

    def _has_come(self, rank: int, word: int, least: int) -> bool:
        return self._words[self._of(rank, word)] >= least

    def _await(self, holds: Callable[[], bool], rank: int) -> None:
        if holds():
            return
        end = time.monotonic() + self.patience
        while not holds():
            if self._leader is not None and _has_ended(self._leader) and not holds():
                raise RuntimeError(_LEADER_ENDED)
            if time.monotonic() > end:
                raise RuntimeError(f"rank {rank} has not been heard of for {self.patience:.0f} s")
            time.sleep(_NAP_S)


_LEADER_ENDED = "rank 0, which announces what all ranks do, has ended"


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))
