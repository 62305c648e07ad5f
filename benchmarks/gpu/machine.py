"""What the figures of a run depend on, and what a device holds while it goes on."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20


def ask_gpu(index: int, field: str) -> str:
    """A field of nvidia-smi's of the device that it calls `index`, without its unit."""
    command = ["nvidia-smi", "-i", str(index), f"--query-gpu={field}"]
    command.append("--format=csv,noheader,nounits")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def gpu_used_mib(index: int) -> int:
    """Of the whole device, by whomever."""
    return int(ask_gpu(index, "memory.used"))


def machine_used_mib() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return (kib["MemTotal"] - kib["MemAvailable"]) >> 10


def describe(gpu: int | None) -> dict[str, Any]:
    """The machine without its name; `gpu` None where there is none."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    if gpu is not None:
        for field in ("name", "memory.total", "driver_version"):
            found[f"gpu {field}"] = ask_gpu(gpu, field)
    return found


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Mean, percentiles (nearest rank) and greatest of at least one value."""
    ordered = sorted(values)
    found = {"mean": statistics.fmean(ordered)}
    for percent in (50, 90, 99):
        found[f"p{percent}"] = ordered[math.ceil(percent / 100 * len(ordered)) - 1]
    return {name: round(value, digits) for name, value in (*found.items(), ("max", ordered[-1]))}


class Watch:
    """Calls `look` once a period in a thread of its own until stop(), and keeps what it says."""

    def __init__(self, look: Callable[[], Any], period_s: float = 1.0) -> None:
        self._look, self._period = look, period_s
        self._seen: list[Any] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            self._seen.append(self._look())
            due += self._period

    def stop(self) -> list[Any]:
        self._stopped.set()
        self._thread.join()
        return self._seen
