"""The counter counts: else a test that counts none proves nothing."""

import os
import threading
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


def test_only_the_interpreter_s_own_lock_is_apart() -> None:
    counter = Counter()
    counter.mark()
    threading.Event().wait(0.001)  # a lock of Python, on the heap
    counter.mark()
    assert sum(counter.stop()["calls"].values()) > 0
    stopped = threading.Event()
    other = threading.Thread(target=lambda: all(True for _ in iter(stopped.is_set, True)))
    counter = Counter()
    counter.mark()
    other.start()
    time.sleep(0)
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    counter.mark()
    found = counter.stop()
    stopped.set()
    other.join()
    assert found["interpreter_lock"] > 10


def test_the_clock_makes_no_call() -> None:
    counter = Counter()
    counter.mark()
    for _ in range(1000):
        time.monotonic()
    counter.mark()
    assert counter.stop()["calls"] == {}
