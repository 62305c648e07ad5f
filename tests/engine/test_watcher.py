"""A watcher gives back what a killed member held, also when nobody asks for memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvcached_core.budget import Budget
from kvcached_core.instance.watcher import Watcher

pytestmark = pytest.mark.engine

PLENTY = 2**62
MEMBER = """
import sys, time
from kvcached_core.budget import Budget
budget = Budget.open(sys.argv[1], sys.argv[2], 0, 0)
size = int(sys.argv[3])
row = budget.join("other", 0, size)
budget.lease(row, size, 2**62, 1000)
budget.mark_created(row, size)
print("holds", flush=True)
time.sleep(600)
"""


@contextmanager
def member(directory: Path, device: str, size: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds so many bytes of the device's budget."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", MEMBER, str(directory), device, str(size)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"holds\n"
            yield other
        finally:
            other.kill()


def kill(other: subprocess.Popen[bytes]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()


def test_the_dead_give_back_without_anybody_asking(tmp_path: Path) -> None:
    budget = Budget.open(str(tmp_path), "host:w", 1000, 0)
    row = budget.join("mine", 0, 1000)
    with member(tmp_path, "host:w", 900) as other:
        check_that_it_is_reaped(budget, row, other)


def check_that_it_is_reaped(budget: Budget, row: int, other: subprocess.Popen[bytes]) -> None:
    watcher = Watcher(budget, row, lambda: None, lambda: False, lambda: False, lambda: None)
    try:
        assert budget.available(row, PLENTY) == 100
        kill(other)
        deadline = time.monotonic() + 30  # guards against a hang
        while budget.available(row, PLENTY) < 1000 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert budget.available(row, PLENTY) == 1000
    finally:
        watcher.stop()
