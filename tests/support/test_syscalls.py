"""The counter counts: else a test that counts none proves nothing."""

import os
import time

from support.syscalls import Counter


def test_what_lies_between_markers_is_counted() -> None:
    counter = Counter()
    os.getpriority(os.PRIO_PROCESS, 0)
    counter.mark()
    os.uname()
    os.uname()
    counter.mark()
    os.getpriority(os.PRIO_PROCESS, 0)
    counter.mark()
    counter.mark()
    found = counter.stop()
    assert found["marks"] == 4
    assert sum(found["calls"].values()) == 2


def test_the_clock_makes_no_call() -> None:
    counter = Counter()
    counter.mark()
    for _ in range(1000):
        time.monotonic()
    counter.mark()
    assert counter.stop()["calls"] == {}
