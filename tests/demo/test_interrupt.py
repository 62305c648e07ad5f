"""An interrupted demo leaves no process, no folder and nothing in shared memory.

demo.sh runs as it is, with stand-ins for the steps that it starts: a process that has lost its
parent, is deaf to SIGTERM and holds a file in shared memory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "ci" / "demo"

# Generous: only a hang takes this long.
DEADLINE_S = 60

ENV = """#!/bin/sh
[ "$1" = --engine ] && shift 2
mkdir -p "$1/bin" "$1/upstream"
[ -n "$STOP_IN_ENV" ] && { sleep 600 & echo $! >>"$PIDS"; sleep 600; }
printf '#!/bin/sh\\nexec %s "$@"\\n' "$REAL_PYTHON" >"$1/bin/python"
chmod +x "$1/bin/python"
"""

RUN = """
import os, signal, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, os.environ["DEMO"])
from processes import Processes
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda received, _: sys.exit(128 + received))
processes = Processes(Path(sys.argv[1]), {}, patience=0.5)
try:
    child = os.environ["DEMO_CHILD"]
    processes.start([sys.executable, child, "parent"], Path(sys.argv[1]) / "log", {})
    time.sleep(600)
finally:
    processes.end()
"""

CHILD = """
import mmap, os, signal, subprocess, sys, time
if sys.argv[1] == "parent":  # ends at once and leaves an orphan
    subprocess.Popen([sys.executable, __file__, "orphan"])
    sys.exit()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["SHARED"], "wb+") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 4096)
with open(os.environ["PIDS"], "a") as file:
    print(os.getpid(), file=file, flush=True)
time.sleep(600)
"""


class Stage:
    """A repository with the real demo.sh and stand-ins for the rest."""

    def __init__(self, root: Path) -> None:
        self.temporary = root / "tmp"
        self.pids = root / "pids"
        self.shared = Path(f"/dev/shm/kvcached-demo-test-{os.getpid()}")
        ci = root / "repository" / "ci"
        (ci / "demo").mkdir(parents=True)
        self.temporary.mkdir()
        shutil.copy(DEMO.parent / "demo.sh", ci / "demo.sh")
        (ci / "env.sh").write_text(ENV)
        (ci / "env.sh").chmod(0o755)
        (ci / "demo" / "run.py").write_text(RUN)
        (root / "child.py").write_text(CHILD)
        self.script = ci / "demo.sh"
        self.child = root / "child.py"

    def start(self, stop_in_env: bool) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(self.script)],
            start_new_session=True,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("KVCACHED_VENV")},
                "TMPDIR": str(self.temporary),
                "PIDS": str(self.pids),
                "SHARED": str(self.shared),
                "DEMO": str(DEMO),
                "DEMO_CHILD": str(self.child),
                "REAL_PYTHON": sys.executable,
                "STOP_IN_ENV": "1" if stop_in_env else "",
            },
        )

    def started(self) -> list[int]:
        return [int(pid) for pid in self.pids.read_text().split()] if self.pids.exists() else []


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for pid in stage.started():
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
    stage.shared.unlink(missing_ok=True)


def lives(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stop_in_env", [True, False], ids=["environment", "engines"])
def test_interrupt_leaves_nothing(stage: Stage, number: signal.Signals, stop_in_env: bool) -> None:
    demo = stage.start(stop_in_env)
    wait_until(lambda: bool(stage.started()))
    (pid,) = stage.started()
    assert lives(pid)
    assert [path.name[:14] for path in stage.temporary.iterdir()] == ["kvcached-demo."]
    assert stage.shared.exists() != stop_in_env

    demo.send_signal(number)

    assert demo.wait(DEADLINE_S) == 128 + number
    assert not lives(pid)
    assert list(stage.temporary.iterdir()) == []
    assert not stage.shared.exists()


def test_a_drawing_that_cannot_be_made_is_refused_at_once(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, said in [("demo.jpg", "must end in .png"), ("file/demo.png", "file")]:
        done = subprocess.run(
            [str(stage.script), name], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert said in done.stderr
    assert list(stage.temporary.iterdir()) == []
