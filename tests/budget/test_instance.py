"""The segments of running engines: one name, one live engine; the dead are swept."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from budget_peer import PATIENCE_S, environment
from rank_rig import FAILED_IN_PART, FAILURE_IN_PART, RING_AT, set_word

from kvcached_core.budget import (
    Segment,
    create_segment,
    instance,
    open_device_budget,
    open_host_budget,
    remove_segment,
)

ENGINE = """
import sys, time
from pathlib import Path
from kvcached_core.budget import create_segment
try:
    print(create_segment(Path(sys.argv[1]), sys.argv[2], 8, 1), flush=True)
except RuntimeError as error:
    print(error, flush=True)
if "fork" in sys.argv:
    import os
    if os.fork() == 0:
        print("forked", os.getpid(), flush=True)
        time.sleep(600)
time.sleep(600)
"""


class Engine:
    def __init__(self, directory: Path, name: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(directory), name, *options],
            stdout=subprocess.PIPE,
            env=environment(),
            bufsize=0,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "no answer"
        return self.process.stdout.readline().decode().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@contextmanager
def engine(directory: Path, name: str, *options: str) -> Iterator[Engine]:
    made = Engine(directory, name, *options)
    try:
        yield made
    finally:
        made.kill()
        if made.process.stdout is not None:
            made.process.stdout.close()


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "instances").iterdir())


def test_a_segment_is_made_and_removed_once(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    path = create_segment(directory, "team/dp0", 8, 2)
    assert Segment.open(str(path)).num_ranks == 2
    assert segments(directory) == ["team%2Fdp0.segment"]
    for folder in (directory, directory / "instances"):
        assert folder.stat().st_mode & 0o777 == 0o700
    remove_segment(path)
    assert segments(directory) == []
    again = create_segment(directory, "team/dp0", 8, 2)
    with engine(directory, "other") as other:
        other.line()
        remove_segment(directory / "instances" / "other.segment")
        assert len(segments(directory)) == 2
    remove_segment(again)
    remove_segment(again)


def test_names_that_look_alike_are_different(tmp_path: Path) -> None:
    paths = [create_segment(tmp_path, name, 8, 1) for name in ("a/b", "a@b", "a%2Fb", ".", "..")]
    assert len(set(paths)) == len(segments(tmp_path)) == 5
    for path in paths:
        remove_segment(path)


def test_a_living_engine_keeps_its_name(tmp_path: Path) -> None:
    with engine(tmp_path, "mine") as other:
        path = other.line()
        before = Path(path).stat().st_ino
        holder = f"'mine' runs already as process {other.process.pid} .*stop it, or give"
        with pytest.raises(RuntimeError, match=holder):
            create_segment(tmp_path, "mine", 8, 1)
        assert Path(path).stat().st_ino == before
        other.kill()
        remove_segment(create_segment(tmp_path, "mine", 8, 1))


def test_a_name_conflicts_within_a_process_too(tmp_path: Path) -> None:
    path = create_segment(tmp_path, "mine", 8, 1)
    with pytest.raises(RuntimeError, match="runs already"):
        create_segment(tmp_path, "mine", 8, 1)
    remove_segment(path)


def test_of_engines_that_start_together_one_gets_the_name(tmp_path: Path) -> None:
    engines = [Engine(tmp_path, "same") for _ in range(4)]
    try:
        lines = [one.line() for one in engines]
    finally:
        for one in engines:
            one.kill()
            assert one.process.stdout is not None
            one.process.stdout.close()
    assert sorted("runs already" in line for line in lines) == [False, True, True, True]


def kept(directory: Path) -> list[str]:
    names = sorted((directory / "postmortem").iterdir(), key=lambda path: path.name.split(".")[1])
    return [path.name.split(".")[0] for path in names]


def test_the_dead_are_moved_aside_and_unfinished_files_removed(tmp_path: Path) -> None:
    with engine(tmp_path, "dead") as dead, engine(tmp_path, "alive") as alive:
        dead.line()
        alive.line()
        dead.kill()
        (tmp_path / "instances" / "half.segment.x7Gh2a").touch()
        path = create_segment(tmp_path, "mine", 8, 1)
        assert segments(tmp_path) == ["alive.segment", "mine.segment"]
        assert kept(tmp_path) == ["dead"]
        remove_segment(path)
        assert kept(tmp_path) == ["dead"]


@pytest.mark.parametrize("hours_a_turn", [0, -1])
def test_the_last_eight_of_the_dead_are_kept_and_their_names_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours_a_turn: int
) -> None:
    turns, time_ns = iter(range(10**6)), time.time_ns
    if hours_a_turn:  # the clock is set back
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() - next(turns) * 3600 * 10**9)
    for turn in range(instance.KEPT + 3):
        path = create_segment(tmp_path, f"engine{turn % 5}", 8, 1)
        os.close(instance._locks.pop(str(path)))  # as its death does
    remove_segment(create_segment(tmp_path, "last", 8, 1))
    assert segments(tmp_path) == []
    assert kept(tmp_path) == [f"engine{turn % 5}" for turn in range(3, instance.KEPT + 3)]
    newest, oldest = instance.segment_files(tmp_path, "engine0")
    assert newest.name > oldest.name and newest.parent.name == "postmortem"


def test_what_is_no_segment_is_left_alone(tmp_path: Path) -> None:
    remove_segment(create_segment(tmp_path, "first", 8, 1))
    os.mkfifo(tmp_path / "instances" / "pipe.segment")
    (tmp_path / "instances" / "folder.segment").mkdir()
    (tmp_path / "postmortem" / "notes.segment").touch()
    remove_segment(create_segment(tmp_path, "second", 8, 1))
    assert segments(tmp_path) == ["folder.segment", "pipe.segment"]
    assert instance.segment_files(tmp_path, "notes") == []


def test_an_engine_that_failed_leaves_its_segment(tmp_path: Path) -> None:
    path = create_segment(tmp_path, "mine", 8, 1)
    for at, word in ((FAILURE_IN_PART, int.from_bytes(b"boom", "little")), (FAILED_IN_PART, 1)):
        set_word(str(path), RING_AT + 64 + at, word)
    remove_segment(path)
    assert segments(tmp_path) == [] and kept(tmp_path) == ["mine"]
    remove_segment(create_segment(tmp_path, "mine", 8, 1))
    assert kept(tmp_path) == ["mine"]


def test_a_forked_child_neither_removes_nor_keeps_alive(tmp_path: Path) -> None:
    path = create_segment(tmp_path, "mine", 8, 1)
    child = os.fork()
    if child == 0:
        remove_segment(path)
        os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()
    with pytest.raises(RuntimeError, match="runs already"):
        create_segment(tmp_path, "mine", 8, 1)
    remove_segment(path)


def test_a_dead_engines_child_does_not_keep_its_name(tmp_path: Path) -> None:
    with engine(tmp_path, "mine", "fork") as other:
        other.line()
        child = int(other.line().split()[1])
        try:
            other.kill()
            remove_segment(create_segment(tmp_path, "mine", 8, 1))
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("which", ["", "instances", "postmortem"])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, which: str) -> None:
    folder = tmp_path / "shared" / which
    folder.mkdir(parents=True)
    folder.chmod(0o770)
    with pytest.raises(RuntimeError, match=f"{folder} belongs to .* mode 770"):
        create_segment(tmp_path / "shared", "mine", 8, 1)


def test_a_folder_kept_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_segment(create_segment(tmp_path, "mine", 8, 1))
    monkeypatch.setattr(instance, "_FOLDER_DEADLINE_S", 0.05)
    keeper = os.open(tmp_path / "instances", os.O_RDONLY)
    fcntl.flock(keeper, fcntl.LOCK_EX)
    with pytest.raises(RuntimeError, match=r"kept .* locked"):
        create_segment(tmp_path, "mine", 8, 1)
    os.close(keeper)
    remove_segment(create_segment(tmp_path, "mine", 8, 1))


def test_a_record_is_found_again(tmp_path: Path) -> None:
    made = open_host_budget(tmp_path, "here", 1 << 20)
    assert open_device_budget(tmp_path, "host:here").capacity() == made.capacity()
