"""Each benchmark runs, and checks what it measured; how long it took is for people."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FILES = sorted(path.name for path in BENCHMARKS.glob("bench_*.py"))


def test_there_are_benchmarks() -> None:
    assert FILES == ["bench_hooks.py", "bench_ledger.py", "bench_queue.py", "bench_transactions.py"]


@pytest.mark.engine
@pytest.mark.slow
def test_each_benchmark_runs_once() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--benchmark-disable", *(str(BENCHMARKS / name) for name in FILES)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = ended.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"43 passed.*", summary), summary
