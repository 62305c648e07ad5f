"""Watches the budget's record: which engine has how much memory mapped."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from scene import Pair

from kvcached_core.budget import Budget

_EVERY_S = 0.1
# While memory moves between engines a look at all rows may straddle the move; then look again.
_LOOKS = 20

Mapped = tuple[int, ...]  # bytes, in the order of the pair's engines


@dataclass(frozen=True)
class Sample:
    seconds: float  # since the sampler began
    mapped: Mapped


class Sampler:
    """Samples in a thread of its own from construction until stop()."""

    def __init__(self, directory: Path, pair: Pair) -> None:
        self._names = pair.names
        self._budget = Budget.open(str(directory), pair.device, 0, 0)
        self._began = time.monotonic()
        self._samples: list[Sample] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        return int(self._budget.capacity())

    def now(self) -> Mapped:
        """What each engine has mapped, all at one moment."""
        for _ in range(_LOOKS):
            before = self._budget.event()
            created = {row.instance: row.created for row in self._budget.rows()}
            if self._budget.event() == before:  # nobody released anything in between
                break
        return tuple(int(created.get(name, 0)) for name in self._names)

    def members(self) -> list[str]:
        return [row.instance for row in self._budget.rows()]

    def seconds(self) -> float:
        """Since the sampler began."""
        return time.monotonic() - self._began

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def since(self, seconds: float) -> list[Mapped]:
        """What was mapped from then on, this moment included."""
        return [s.mapped for s in self.samples() if s.seconds >= seconds] + [self.now()]

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            mapped = self.now()
            self._samples.append(Sample(round(self.seconds(), 3), mapped))
