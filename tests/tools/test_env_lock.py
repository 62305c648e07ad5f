"""ci/env.sh: one run at a time in a checkout; the lock goes with its holder; what is refused; where
environments are."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_upstream import REPOSITORY

# Stands in for the interpreter: the virtual environment, the first real step, waits or fails.
PYTHON = """#!/bin/sh
if [ "$1" = -m ] && [ "$2" = venv ]; then
  echo reached >reached
  [ -e fail ] && exit 3
  sleep 120
  exit 3
fi
exec {python} "$@"
"""
DEADLINE_S = 30.0  # guards against a hang


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "ci").mkdir(parents=True)
    shutil.copy(REPOSITORY / "ci" / "env.sh", root / "ci" / "env.sh")
    (root / "vendored" / "vllm").mkdir(parents=True)
    (root / "vendored" / "vllm" / "upstream.yaml").touch()
    python = root / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    return root


def start(root: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(root / "ci" / "env.sh"), *(arguments or ["venv"])],
        env=os.environ | {"PYTHON": str(root / "python")} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(run: subprocess.Popen[str]) -> None:
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


@pytest.fixture
def first(root: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that is at work."""
    run = start(root)
    deadline = time.monotonic() + DEADLINE_S
    while not (root / "reached").exists():
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    (root / "reached").unlink()
    yield run
    if run.poll() is None:
        end(run)


def outcome(run: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = run.communicate(timeout=DEADLINE_S)
    return run.returncode, text


def test_a_second_run_is_refused_and_touches_nothing(
    root: Path, first: subprocess.Popen[str]
) -> None:
    (root / "dist" / "kvcached_core-1-py3-none-any.whl").write_text("being written")
    code, text = outcome(start(root))
    assert code == 1
    assert f"env: another run of ci/env.sh is at work in {root} (process {first.pid})" in text
    assert "wait until it has ended, or end it, then run this again" in text
    assert not (root / "reached").exists()
    assert (root / "dist" / "kvcached_core-1-py3-none-any.whl").read_text() == "being written"
    assert first.poll() is None


def test_the_lock_of_a_killed_run_is_free(root: Path, first: subprocess.Popen[str]) -> None:
    end(first)
    (root / "fail").touch()
    code, text = outcome(start(root))
    assert "another run" not in text
    assert code == 1 and "virtual environment in venv ... FAILED" in text


def test_whatever_a_run_has_started_still_counts(root: Path, first: subprocess.Popen[str]) -> None:
    os.kill(first.pid, signal.SIGKILL)  # the script alone: what it started goes on writing
    first.wait()
    assert "another run of ci/env.sh is at work" in outcome(start(root))[1]
    os.killpg(first.pid, signal.SIGKILL)


def test_an_unknown_engine_is_refused(root: Path) -> None:
    command = [str(root / "ci" / "env.sh"), "--engine", "tpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "env: --engine tpu: no such engine; choose vllm or sglang" in done.stderr
    assert not (root / "dist").exists()


def test_any_holder_of_the_lock_counts(root: Path) -> None:
    (root / "dist").mkdir()
    with (root / "dist" / ".lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "(process 4711)" in outcome(start(root))[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "vllm==9.9", "venv"], "--engine vllm==9.9: no such pin; there are: vllm\n"),
        (["--engine", "trt"], "choose vllm or sglang"),
        (["--help"], "usage: ci/env.sh [--engine"),
        (["venv", "--where"], "usage: ci/env.sh [--engine"),
        (["one", "two"], "usage: ci/env.sh [--engine"),
    ],
)
def test_what_it_does_not_know_is_refused_before_anything_is_made(
    root: Path, arguments: list[str], said: str
) -> None:
    before = sorted(root.rglob("*"))
    status, text = outcome(start(root, *arguments))
    assert status == 2 and said in text
    assert sorted(root.rglob("*")) == before


NAMED = {"KVCACHED_VENV": "", "KVCACHED_VENV_SGLANG": ""}
PINS = ("vllm", "vllm/9.0", "sglang", "sglang/9.0.post1")


@pytest.fixture
def pins(root: Path) -> Path:
    for pin in PINS:
        (root / "vendored" / pin).mkdir(parents=True, exist_ok=True)
        (root / "vendored" / pin / "upstream.yaml").touch()
    return root


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["--engine", "vllm"], ".venv"),
        (["--engine", "sglang"], ".venv-sglang"),
        (["--engine", "vllm==9.0"], ".venv-vllm-9.0"),
        (["--engine", "sglang==9.0.post1"], ".venv-sglang-9.0.post1"),
    ],
)
def test_an_environment_has_a_folder_of_its_own(
    pins: Path, arguments: list[str], folder: str
) -> None:
    before = sorted(pins.rglob("*"))
    assert outcome(start(pins, *arguments, "--where", **NAMED)) == (0, f"{folder}\n")
    assert outcome(start(pins, "--where", *arguments, "mine", **NAMED)) == (0, "mine\n")
    assert sorted(pins.rglob("*")) == before
    (pins / "fail").touch()
    made = outcome(start(pins, *arguments, **NAMED))[1]
    assert f"env: virtual environment in {folder} ..." in made


def test_variables_name_the_folders_of_default_pins_only(pins: Path) -> None:
    named = {"KVCACHED_VENV": "one", "KVCACHED_VENV_SGLANG": "two"}
    said = [
        outcome(start(pins, "--where", "--engine", pin.replace("/", "=="), **named))[1]
        for pin in PINS
    ]
    assert outcome(start(pins, "--where", **named)) == (0, "one\n")
    assert said == ["one\n", ".venv-vllm-9.0\n", "two\n", ".venv-sglang-9.0.post1\n"]
