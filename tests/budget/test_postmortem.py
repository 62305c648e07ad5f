"""What can be read of an engine after `kill -9`, and of one that lives."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from budget_peer import PATIENCE_S, environment
from rank_rig import DEVICE, FAILED_IN_PART, FAILURE_IN_PART, PAGE, RING_AT, set_word

from kvcached_core.budget import Segment, create_segment, open_device_budget, remove_segment
from kvcached_core.budget.postmortem import main

ENGINE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from rank_rig import Rig
from kvcached_core.budget import Segment, create_segment
directory, name = Path(sys.argv[1]), sys.argv[2]
path = str(create_segment(directory, name, 8, 1))
if os.fork() == 0:  # the rank is a process of its own
    print("rank", os.getpid(), flush=True)
    engine = Rig(directory)
    engine.segment = Segment.open(path)
    member = engine.join(name=name)
    time.sleep(600)
segment = Segment.open(path)
while not segment.rank_info(0)["joined"]:
    time.sleep(0.001)
segment.request([1, 2, 3])
while segment.outstanding():
    segment.poll()
segment.record([2], "owned", "retiring", 7)
print("ready", flush=True)
time.sleep(600)
"""


class Engine:
    """A scheduler half and a rank, two processes; three pages grown, one retiring."""

    def __init__(self, directory: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(directory), name, str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            env=environment(),
            bufsize=0,
        )
        self.rank = int(self.line().split()[1])
        assert self.line() == "ready"  # by then the rank has joined

    def line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "no answer"
        return self.process.stdout.readline().decode().strip()

    def kill_scheduler(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def kill_rank(self) -> None:
        """And back when it is gone: its copy of the pipe is closed then."""
        os.kill(self.rank, signal.SIGKILL)
        assert self.process.stdout is not None
        if self.process.poll() is not None:
            assert self.process.stdout.read() == b""


@contextmanager
def engine(directory: Path, name: str = "team/dp0") -> Iterator[Engine]:
    made = Engine(directory, name)
    try:
        yield made
    finally:
        made.kill_scheduler()
        with suppress(ProcessLookupError):
            made.kill_rank()
        assert made.process.stdout is not None
        made.process.stdout.close()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--budget-dir", str(tmp_path)])
        return (code, *capsys.readouterr())

    return call


def lives(report: dict[str, Any]) -> tuple[Any, Any]:
    return report["alive"], report["ranks"][0]["alive"]


def test_a_killed_engine_can_be_read(tmp_path: Path, run: Any) -> None:
    def read() -> dict[str, Any]:
        code, out, _ = run("team/dp0", "--json", "-n", "4096")
        assert code == 0
        report: dict[str, Any] = json.loads(out)
        return report

    with engine(tmp_path) as made:
        alive = read()
        assert lives(alive) == (True, True)
        made.kill_scheduler()
        assert lives(read()) == (False, True)
        made.kill_rank()
        dead = read()
        assert lives(dead) == (False, False)
    for key in ("transitions", "num_pages", "entries_asked", "pid", "made_wall_ns"):
        assert dead[key] == alive[key]
    assert dead["pid"] == made.process.pid
    assert dead["ranks"][0]["pages"] == {"virtual": 4, "owned": 4, "quarantined": 0}
    assert dead["ranks"][0]["created_bytes"] == 4 * PAGE
    mine = [t for t in dead["transitions"] if t["who"] == "scheduler"]
    assert [(t["page"], t["to"]) for t in mine[:3]] == [(n, "preparing") for n in (1, 2, 3)]
    assert (mine[-1]["page"], mine[-1]["from"], mine[-1]["epoch"]) == (2, "owned", 7)
    # The next start moves it aside; it is found by the same name still.
    path = create_segment(tmp_path, "other", 8, 1)
    moved = read()
    assert Path(moved["path"]).parent.name == "postmortem"
    assert moved["transitions"] == dead["transitions"] and lives(moved) == (False, False)
    remove_segment(path)


def test_people_read_it_too(tmp_path: Path, run: Any) -> None:
    with engine(tmp_path) as made:
        code, out, _ = run("team/dp0", "-n", "2")
        assert code == 0
        for text in (
            f"made .* UTC by process {made.process.pid}",
            "scheduler half: lives; asked for 3 pages",
            rf"rank 0 on {DEVICE} \(row 0\): lives; pages: 4 virtual, 4 owned, 0 quarantined",
            "last failure: none",
            "last 2 page transitions:",
            r"0.000 ms .* page \d .* -> ",
            r"the last at \d{4}-.* UTC, \d",
        ):
            assert re.search(text, out), (text, out)
        path = str(tmp_path / "instances" / "team%2Fdp0.segment")
        set_word(path, RING_AT + 64 + FAILED_IN_PART, 1)
        set_word(path, RING_AT + 64 + FAILURE_IN_PART, int.from_bytes(b"boom", "little"))
        assert "last failure: rank 0: boom" in run(path)[1]
        assert "last 0 page transitions" in run(path, "-n", "0")[1]


def test_a_later_engine_of_the_name_is_not_taken_for_it(tmp_path: Path, run: Any) -> None:
    with engine(tmp_path) as first:
        first.kill_scheduler()
        first.kill_rank()
        with engine(tmp_path):
            assert lives(json.loads(run("team/dp0", "--json")[1])) == (True, True)
            (old,) = (tmp_path / "postmortem").iterdir()
            assert lives(json.loads(run(str(old), "--json")[1])) == (False, None)
            copy = shutil.copy(old, tmp_path / "copy")
            assert lives(json.loads(run(str(copy), "--json")[1])) == (None, None)


def test_reading_changes_nothing(tmp_path: Path, run: Any) -> None:
    path = create_segment(tmp_path, "mine", 8, 1)
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.rglob("*")))
    path.chmod(0o400)
    assert run("mine")[0] == 0
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.rglob("*"))) == before
    remove_segment(path)


def test_bad_input_is_an_error_that_says_what_to_do(tmp_path: Path, run: Any) -> None:
    good = tmp_path / "good"
    Segment.create(str(good), 8, 1)
    short, garbage, other, torn = (tmp_path / n for n in ("short", "garbage", "other", "torn"))
    short.write_bytes(b"KV")
    garbage.write_bytes(b"x" * 4096)
    shutil.copy(good, other)
    set_word(str(other), 8, 1)
    torn.write_bytes(good.read_bytes()[:5000])
    for path, message in (
        (short, "too short for a segment"),
        (garbage, "is no segment"),
        (other, "version 1, this build reads 3"),
        (torn, "torn segment: it has 5000 bytes"),
        (tmp_path / "none", r"is no file, and .* has no segment .*--budget-dir.* no segments at"),
        ("a\0b", "NUL"),
    ):
        code, out, error = run(str(path))
        assert (code, out) == (1, "")
        assert re.search(message, error) and "Traceback" not in error
    path = create_segment(tmp_path, "mine", 8, 1)
    assert f"there are:\n  {path}" in run("nobody")[2]
    remove_segment(path)
    for count in ("-1", "4097", "x"):
        with pytest.raises(SystemExit):
            run("mine", f"-n={count}")


def test_it_is_a_program(tmp_path: Path) -> None:
    path = create_segment(tmp_path, "mine", 8, 1)
    command = [sys.executable, "-m", "kvcached_core.budget.postmortem", str(path), "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, check=True)
    assert json.loads(done.stdout)["alive"] is True and done.stderr == b""
    remove_segment(path)


def test_no_record_is_no_hindrance(tmp_path: Path, run: Any) -> None:
    with engine(tmp_path) as made:
        record = next(tmp_path.glob("*.record"))
        open_device_budget(tmp_path, DEVICE)
        record.rename(tmp_path / "gone")
        assert lives(json.loads(run("team/dp0", "--json")[1])) == (True, None)
        made.kill_scheduler()
