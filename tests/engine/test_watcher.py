"""A watcher gives back what a killed member held, also when nobody asks for memory."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcached_core.budget import Budget
from kvcached_core.instance.watcher import Watcher

pytestmark = pytest.mark.engine

PLENTY = 2**62
MEMBER = """
import sys, time
from kvcached_core.budget import Budget
budget = Budget.open(sys.argv[1], "host:w", 0, 0)
row = budget.join("other", 0, 1000)
budget.lease(row, 900, 2**62, 1000)
budget.mark_created(row, 900)
print("holds", flush=True)
time.sleep(600)
"""


def test_the_dead_give_back_without_anybody_asking(tmp_path: Path) -> None:
    budget = Budget.open(str(tmp_path), "host:w", 1000, 0)
    row = budget.join("mine", 0, 1000)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(tmp_path)], env=env, stdout=subprocess.PIPE
    )
    assert other.stdout is not None and other.stdout.readline() == b"holds\n"
    watcher = Watcher(budget, row, lambda: None, lambda: False, lambda: False, lambda: None)
    try:
        assert budget.available(row, PLENTY) == 100
        other.send_signal(signal.SIGKILL)
        other.wait()
        deadline = time.monotonic() + 30  # guards against a hang
        while budget.available(row, PLENTY) < 1000 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert budget.available(row, PLENTY) == 1000
    finally:
        watcher.stop()
        other.stdout.close()
