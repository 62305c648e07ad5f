"""Other processes for the tests of the budget, and the record's bytes as they lie on disk."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kvcached_core

WORKER = Path(__file__).with_name("budget_worker.py")
PLENTY = 1 << 60
# Only a guard against a hang.
PATIENCE_S = 30

HEADER_BYTES = ROW_BYTES = 192
VERSION_AT, BOOT_ID_AT, BOOT_ID_BYTES = 8, 24, 40
LEASE_WORD = 8


def environment() -> dict[str, str]:
    root = str(Path(kvcached_core.__file__).parents[1])
    return os.environ | {"PYTHONPATH": root}


class Peer:
    """A process that evaluates expressions beside an open `budget`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment(),
        )
        assert self.reply() == "ready"

    def send(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def reply(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "the peer does not answer"
        return self.process.stdout.readline().rstrip("\n")

    def do(self, expression: str) -> str:
        self.send(expression)
        return self.reply()

    def kill(self) -> None:
        """SIGKILL, and back when the process is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def peer(directory: Path, device: str = "", capacity: int = 0, headroom: int = 0) -> Iterator[Peer]:
    other = Peer("serve", str(directory), device, str(capacity), str(headroom))
    try:
        yield other
    finally:
        other.kill()


def wait_for(path: Path) -> str:
    """The text of a file that another process is about to write."""
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end, f"nobody wrote {path}"
        time.sleep(0.01)
    return path.read_text()


@contextmanager
def table_locked(record: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    with record.open("rb") as file:
        fcntl.flock(file, how)
        yield
        fcntl.flock(file, fcntl.LOCK_UN)


def row_bytes(record: Path) -> list[bytes]:
    rows = record.read_bytes()[HEADER_BYTES:]
    return [rows[at : at + ROW_BYTES] for at in range(0, len(rows), ROW_BYTES)]


def leases(record: Path) -> list[int]:
    """Leases of the taken rows, the dead's included, as one moment saw them."""
    with table_locked(record):
        words = [struct.unpack("24Q", row) for row in row_bytes(record)]
    return [row[LEASE_WORD] for row in words if row[0]]


def patch(record: Path, at: int, data: bytes) -> None:
    with record.open("r+b") as file:
        file.seek(at)
        file.write(data)
