"""What the members of a budget have of its device: by the record, and by the device itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.observe import memfd_bytes
from kvcached_core.budget import Budget, open_device_budget

PATIENCE_S = 30.0


def gpu_key(number: int = 0) -> str:
    """Of the budget of a GPU; `number` counts those that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    index = visible.split(",")[number] if visible else str(number)
    command = ["nvidia-smi", "-i", index, "--query-gpu=uuid", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"cuda:{found.strip()}"


def device_used(key: str, pids: list[int]) -> int:
    """Bytes: of a GPU all that is used, by whomever; of the host what drivers of `pids` hold."""
    if key.startswith("cuda:"):
        return _gpu_used(key.removeprefix("cuda:"))
    return sum(memfd_bytes(pid) for pid in pids)


def _gpu_used(uuid: str) -> int:
    # In microseconds and without a context there: nvidia-smi takes longer than members keep still.
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


@dataclass(frozen=True)
class Use:
    """At one moment. Bytes; `created`, `lease` and `floor` by the members' names."""

    used: int
    created: dict[str, int]
    lease: dict[str, int]
    floor: dict[str, int]

    @property
    def besides(self) -> int:
        """Of the device, what is no cache of any member: weights, activations, and leaks."""
        return self.used - sum(self.created.values())


class DeviceUse:
    """Looks at a device and its record at one moment, though members go on meanwhile."""

    def __init__(self, directory: Path, key: str) -> None:
        self._key = key
        self._budget: Budget = open_device_budget(directory, key)

    def look(self) -> Use:
        """Until the record is the same before the look at the device and after it."""
        end = time.monotonic() + PATIENCE_S
        before = self._rows()
        while True:
            used = device_used(self._key, [row.pid for row in before])
            after = self._rows()
            if [(r.instance, r.created) for r in before] == [
                (r.instance, r.created) for r in after
            ]:
                parts = ({r.instance: getattr(r, n) for r in after} for n in NAMES)
                return Use(used, *parts)
            assert time.monotonic() < end, "the members never keep still"
            before = after

    def _rows(self) -> list[Any]:
        return sorted(self._budget.rows(), key=lambda row: row.instance)


NAMES = ("created", "lease", "floor")


def plain(use: Use) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(use), "besides": use.besides}


class Watch:
    """Samples in the background what each member has created, and the greatest of each and all."""

    def __init__(self, directory: Path, key: str, period_s: float = 0.01) -> None:
        self.peaks: dict[str, int] = {}
        self.peak_of_all = 0
        self._directory, self._key, self._period = directory, key, period_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        budget: Budget | None = None
        while not self._stopped.wait(self._period):
            if budget is None:
                with contextlib.suppress(RuntimeError):  # no record yet
                    budget = open_device_budget(self._directory, self._key)
                continue
            created = {row.instance: row.created for row in budget.rows()}
            self.peak_of_all = max(self.peak_of_all, sum(created.values()))
            for name, size in created.items():
                self.peaks[name] = max(self.peaks.get(name, 0), size)
