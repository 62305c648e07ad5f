"""The log that the first rank writes and the others read."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.sglang]

RANKS = 3


def boards(path: Path) -> list[Any]:
    from kvcached_core.engines.sglang.ranks.board import Board

    first = Board.make(path, RANKS, 10)
    return [first, *(Board.open(path, rank, RANKS) for rank in range(1, RANKS))]


def read(board: Any) -> bytes | None:
    entry: bytes | None = board.peek()
    if entry is not None:
        board.take()
    return entry


def test_all_read_all_in_order(tmp_path: Path) -> None:
    """Round the end of the log many times, at different paces."""
    first, fast, slow = boards(tmp_path / "board")
    entries = [bytes([n % 251]) * (n * 7919 % 30_000) for n in range(600)]
    waiting: list[bytes] = []
    for number, entry in enumerate(entries):
        first.announce(entry)
        waiting.append(entry)
        assert read(fast) == entry
        assert read(fast) is None
        if number % 20 == 19:
            assert [read(slow) for _ in waiting] == waiting
            waiting.clear()
    assert read(slow) is None


def test_an_entry_is_there_until_it_is_taken(tmp_path: Path) -> None:
    first, other, _ = boards(tmp_path / "board")
    first.announce(b"one")
    assert [other.peek(), other.peek(), other.await_entry()] == [b"one"] * 3
    other.take()
    assert other.peek() is None


def test_who_does_not_read_is_named(tmp_path: Path) -> None:
    first, other, _ = boards(tmp_path / "board")
    first.patience = 0.2
    with pytest.raises(RuntimeError, match="rank 2 has not been heard of for"):
        for _ in range(200):
            first.announce(bytes(10_000))
            read(other)


def test_who_announces_nothing_is_named(tmp_path: Path) -> None:
    _, other, _ = boards(tmp_path / "board")
    other.patience = 0.2
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 0 has not been heard of for"):
        other.await_entry()
    assert 0.2 <= time.monotonic() - began < 5


def test_the_end_of_the_first_rank_ends_waits_at_once(tmp_path: Path) -> None:
    from kvcached_core.engines.sglang.ranks.board import Board

    path, (there, told) = tmp_path / "board", os.pipe()
    child = os.fork()
    if not child:
        Board.make(path, 2, 1).announce(b"x")
        os.write(told, b"made")
        time.sleep(60)
        os._exit(0)
    try:
        assert os.read(there, 4) == b"made"
        other = Board.open(path, 1, 2)
        assert other.await_entry() == b"x"
        other.take()
        os.kill(child, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"rank 0, which announces .*, has ended"):
            other.await_entry()
        assert time.monotonic() - began < 10
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_flags_rise_together(tmp_path: Path) -> None:
    first, second, third = boards(tmp_path / "board")
    first.raise_flag(2)
    second.raise_flag(1)
    assert first.least_flag() == 0
    third.raise_flag(3)
    assert first.least_flag() == 1


def test_posts_are_read_by_step(tmp_path: Path) -> None:
    first, second, third = boards(tmp_path / "board")
    for step in range(1, 50):
        for board in (first, second, third):
            board.post(step, f"{board.rank} {step}".encode())
        assert second.posted(0, step) == f"0 {step}".encode()
        assert second.posted(0, step + 1) is None
    first.patience = 0.1
    with pytest.raises(RuntimeError, match="rank 1 has not been heard of"):
        for step in range(50, 100):
            first.post(step, b"")


def test_it_is_its_user_s(tmp_path: Path) -> None:
    boards(tmp_path / "board")
    assert (tmp_path / "board").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        boards(tmp_path / "board")
