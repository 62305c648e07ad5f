"""The log that the first rank writes and the others read."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
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
    fails(lambda: boards(tmp_path / "board"), tmp_path / "board", "cannot be made .*: File exists")


# --- what is at fault is named ---


def fails(call: Callable[[], Any], path: Path, found: str) -> None:
    """With the one error that there is for a file, which says where, what and what to do."""
    from kvcached_core.engines.sglang.ranks.board_file import BoardError

    text = rf"the board {re.escape(str(path))} of this engine's ranks {found}.*; .*start the engine"
    with pytest.raises(BoardError, match=text) as told:
        call()
    assert told.value.path == path


def other(path: Path) -> Any:
    from kvcached_core.engines.sglang.ranks.board import Board

    return Board.open(path, 1, RANKS)


def harmed(path: Path, at: int, word: int) -> None:
    """With one of its words replaced."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(word.to_bytes(8, "little"))


@pytest.fixture
def full() -> Iterator[None]:
    """Files may have half a board's bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_is_told_and_keeps_nothing(tmp_path: Path, full: None) -> None:
    path = tmp_path / "board"
    fails(lambda: boards(path), path, r"cannot be made \([0-9]+ bytes\): File too large")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_vanished_is_told(tmp_path: Path) -> None:
    from kvcached_core.engines.sglang.ranks.board_file import forget

    path = tmp_path / "sockets" / "board"
    boards(path)
    shutil.rmtree(path.parent)
    fails(lambda: other(path), path, "cannot be opened: No such file")
    forget(path)  # as it should be: its name is gone
    gone = tmp_path / "no" / "folder" / "board"
    fails(lambda: boards(gone), gone, "cannot be made .*: No such file")


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_file_is_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "board"
    if kind == "link":
        boards(tmp_path / "another")
        path.symlink_to(tmp_path / "another")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    fails(lambda: other(path), path, "cannot be opened: |is no regular file")


@pytest.mark.parametrize("size", [0, 7, 4096, 300_000, -8])
def test_a_file_that_was_cut_is_told(tmp_path: Path, size: int) -> None:
    path = tmp_path / "board"
    boards(path)
    os.truncate(path, path.stat().st_size + size if size < 0 else size)
    fails(lambda: other(path), path, "has [0-9]+ bytes, ")


@pytest.mark.parametrize(
    "at, word, found",
    [
        (16, 0, "is none: its mark reads 0x0"),
        (24, 2, "is one of 2 ranks, not of 3"),
        (32, 8, "has [0-9]+ bytes, not "),
        (8, 0, "names process 0 "),
        (8, 2**64 - 1, "names process [0-9]+ "),
    ],
)
def test_another_file_is_told(tmp_path: Path, at: int, word: int, found: str) -> None:
    path = tmp_path / "board"
    boards(path)
    harmed(path, at, word)
    fails(lambda: other(path), path, found)


def test_a_first_rank_that_is_gone_already_is_told(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    boards(tmp_path / "board")
    harmed(tmp_path / "board", 8, child.pid)
    with pytest.raises(RuntimeError, match=r"rank 0, which announces .*, has ended"):
        other(tmp_path / "board")


def log_of(path: Path) -> int:
    """Where it begins."""
    return path.stat().st_size - int.from_bytes(path.read_bytes()[32:40], "little")


@pytest.mark.parametrize("head", [4, 8, 2**20 + 8, 2**63, 2**64 - 8])
def test_a_log_of_no_such_length_is_told(tmp_path: Path, head: int) -> None:
    path = tmp_path / "board"
    reader = boards(path)[1]
    harmed(path, log_of(path), 3)
    harmed(path, 0, head)
    for call in (reader.peek, reader.await_entry, reader.peek):
        fails(call, path, "holds an entry of .* bytes at 0 of a log of 1048576")


@pytest.mark.parametrize("size", [9, 2**20, 2**63, 2**64 - 1, 2**64 - 2])
def test_an_entry_of_no_such_length_is_told(tmp_path: Path, size: int) -> None:
    path = tmp_path / "board"
    first, reader, _ = boards(path)
    first.announce(b"12345678")
    harmed(path, log_of(path), size)
    fails(reader.peek, path, "holds an entry of .* bytes at ")
    harmed(path, log_of(path), 8)
    assert read(reader) == b"12345678"  # nothing was taken in before


def test_any_word_gives_an_entry_or_the_one_error(tmp_path: Path) -> None:
    """At random, half of them small."""
    from kvcached_core.engines.sglang.ranks.board_file import BoardError

    path, rng = tmp_path / "board", random.Random(7)
    first, reader, _ = boards(path)
    first.announce(bytes(20))
    told = 0
    for _ in range(2000):
        harmed(path, rng.choice([0, log_of(path)]), rng.getrandbits(rng.choice([6, 64])))
        try:
            entry = reader.peek()
            assert entry is None or len(entry) <= 1 << 20
        except BoardError:
            told += 1
    assert 500 < told < 2000


def test_a_post_of_no_such_length_is_told(tmp_path: Path) -> None:
    path = tmp_path / "board"
    first, second, _ = boards(path)
    first.post(1, b"12")
    harmed(path, 8 * 8 * (1 + RANKS) + 2048, 2041)
    fails(lambda: second.posted(0, 1), path, "holds 2041 bytes of rank 0 on step 1")


def test_what_does_not_fit_names_the_rank(tmp_path: Path) -> None:
    first, _, third = boards(tmp_path / "board")
    with pytest.raises(RuntimeError, match="rank 0 announces 1048576 bytes"):
        first.announce(bytes(1 << 20))
    with pytest.raises(RuntimeError, match="rank 2 posts 2041 bytes"):
        third.post(1, bytes(2041))


def test_counters_that_mean_nothing_are_told(tmp_path: Path) -> None:
    from kvcached_core.engines.sglang.ranks.compare import Comparison

    path = tmp_path / "board"
    first, second, _ = boards(path)
    first.post(1, b"\xc1")
    fails(lambda: Comparison(second, "one").check({"pages": 1}), path, r"holds no counters but ")
