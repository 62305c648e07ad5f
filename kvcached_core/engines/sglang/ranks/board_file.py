"""The file behind a board: made whole, and looked at before anything in it is believed.

    line 0            how far the log goes, pid of the first rank, mark, ranks, bytes of the log
    a line a rank     how far it has read, its flag, its last step
    slots a rank      what it said of its last steps
    log               the first rank's announcements

Lines are of eight words, words of eight bytes in the machine's order.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WORD = 8
LINE = 8  # words
SLOTS, SLOT_BYTES = 32, 2048
HEAD, PID = 0, 1
_MARK, _RANKS, _LOG = 2, 3, 4
_IS_BOARD = int.from_bytes(b"kvboard1", "little")

_AGAIN = "start the engine again"
_UNTOUCHED = f"{_AGAIN}, and let nothing else write there"


class BoardError(RuntimeError):
    """The file of a board is at fault, and no rank: it cannot be made or opened, or what it holds
    was written by none of this engine's ranks. The text names the file, what was found and what to
    do. Nothing was made or taken in; the engine ends."""

    def __init__(self, path: Path, found: str, remedy: str = _UNTOUCHED) -> None:
        super().__init__(f"the board {path} of this engine's ranks {found}; {remedy}")
        self.path = path


class BoardFile:
    """A view of it, for this process's life; the descriptor is not kept."""

    def __init__(self, path: Path, memory: mmap.mmap, ranks: int) -> None:
        self.path = path
        self.bytes = memoryview(memory)
        self.words = self.bytes[: _lines(ranks)].cast("Q")
        self.slots = _lines(ranks)
        self.log = self.slots + ranks * SLOTS * SLOT_BYTES
        self.log_bytes = len(self.bytes) - self.log

    @classmethod
    def make(cls, path: Path, ranks: int, log_bytes: int) -> BoardFile:
        """With this process as the first rank, mode 0600, all of its memory taken. Raises
        BoardError, and leaves no file then."""
        size = _file_bytes(ranks, log_bytes)
        remedy = f"free some space there or name another budget_dir, and {_AGAIN}"
        with _told(path, f"cannot be made ({size} bytes)", remedy):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(made, 0, size)
                file = cls(path, mmap.mmap(made, size), ranks)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(made)
        file.words[PID], file.words[_RANKS], file.words[_LOG] = os.getpid(), ranks, log_bytes
        file.words[_MARK] = _IS_BOARD
        return file

    @classmethod
    def open(cls, path: Path, ranks: int) -> BoardFile:
        """Of an engine of so many ranks. Raises BoardError."""
        with _told(path, "cannot be opened", _UNTOUCHED):
            found = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                size = _size_of(path, found, _file_bytes(ranks, WORD))
                file = cls(path, mmap.mmap(found, size), ranks)
            finally:
                os.close(found)
        file._check(ranks)
        return file

    def _check(self, ranks: int) -> None:
        if self.words[_MARK] != _IS_BOARD:
            raise BoardError(self.path, f"is none: its mark reads {self.words[_MARK]:#x}")
        if self.words[_RANKS] != ranks:
            raise BoardError(self.path, f"is one of {self.words[_RANKS]} ranks, not of {ranks}")
        if self.words[_LOG] != self.log_bytes:
            expected = _file_bytes(ranks, self.words[_LOG])
            raise BoardError(self.path, f"has {len(self.bytes)} bytes, not {expected}")
        if not 0 < self.words[PID] < 1 << 31:
            raise BoardError(self.path, f"names process {self.words[PID]} as its first rank")


def _size_of(path: Path, file: int, least: int) -> int:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise BoardError(path, "is no regular file")
    if found.st_size < least:
        raise BoardError(path, f"has {found.st_size} bytes, fewer than any board of so many ranks")
    return found.st_size


@contextmanager
def _told(path: Path, what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BoardError(path, f"{what}: {error.strerror}", remedy) from None


def forget(path: Path) -> None:
    """Takes the file's name away. Raises BoardError; that there is none is as well."""
    with _told(path, "cannot be removed", _UNTOUCHED), suppress(FileNotFoundError):
        path.unlink()


def _lines(ranks: int) -> int:
    return LINE * WORD * (1 + ranks)


def _file_bytes(ranks: int, log_bytes: int) -> int:
    return _lines(ranks) + ranks * SLOTS * SLOT_BYTES + log_bytes
