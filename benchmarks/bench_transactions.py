"""Growing and shrinking by transactions at 1, 2, 4 and 8 ranks, each a process on the host driver:
from the scheduler half's call until the pages are its own, or gone (with the step behind whose
fence they go). Prints p50 and p99.

    PYTHONPATH=tests pytest benchmarks/bench_transactions.py -s

KVCACHED_ROUNDS sets how many (50 if it is not set).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from txn.instance import instance

ROUNDS = int(os.environ.get("KVCACHED_ROUNDS", "50"))
PAGES = 16  # of a transaction, a granule each


def timed(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1e3


def figures(name: str, took: list[float]) -> str:
    took.sort()
    return f"{name} p50 {took[len(took) // 2]:.2f} ms, p99 {took[int(len(took) * 0.99)]:.2f} ms"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_grow_and_shrink(ranks: int, tmp_path: Path) -> None:
    pages = range(1, PAGES + 1)
    grow, shrink = [], []
    with instance(tmp_path, [2 * PAGES] * ranks) as engine:
        for _ in range(ROUNDS):
            grow.append(timed(lambda: engine.grow(*pages)))
            assert engine.owned == {*pages}
            engine.step(*pages)
            shrink.append(timed(lambda: engine.shrink(*pages)))
            assert not engine.owned
    print(f"\n{ranks} ranks, {PAGES} pages: {figures('grow', grow)}; {figures('shrink', shrink)}")
