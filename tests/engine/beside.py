"""What an engine does beside another one on its budget: it is busy until told, or sleeps and wakes.

Instants are of the system's monotonic clock, which is one for all processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.device_use import DeviceUse, plain

ROUND = "the runner's workload is done once more"  # a line of the log

Tokens = Callable[[], list[list[int]]]


def busy(tokens: Tokens, stop: Path) -> dict[str, Any]:
    """Repeats the workload until the file is there."""
    rounds = []
    while not stop.exists():
        rounds.append(tokens())
        print(ROUND, flush=True)
    return {"rounds": rounds, "ended": time.monotonic()}


def cycles(llm: Any, tokens: Tokens, count: int, record: tuple[str, str]) -> dict[str, Any]:
    """Sleeps (level 1) and wakes so often; `record` is directory and key of the budget's record."""
    device = DeviceUse(Path(record[0]), record[1])
    began, found = time.monotonic(), []
    for _ in range(count):
        start = time.monotonic()
        llm.sleep(level=1)
        asleep, slept = device.look(), time.monotonic()
        llm.wake_up()
        awake, woken = device.look(), time.monotonic()
        found.append(
            {
                "asleep": plain(asleep),
                "awake": plain(awake),
                "tokens": tokens(),
                "sleep_s": slept - start,
                "wake_s": woken - slept,
            }
        )
    return {"began": began, "ended": time.monotonic(), "cycles": found}
