#!/usr/bin/env python3
"""What other work on a GPU loses while a rank maps and unmaps flat out; writes JSON.

    python benchmarks/gpu/bandwidth.py OUT.json [--mib 2 32] [--gib 4] [--copies 400] [--repeats 5]

Two kinds of work: copies of a tensor of `--gib` (which reads and writes that much; events of the
device tell how long each takes), and replays of a graph of small kernels (from the call until the
device is done, by the host's clock). Each is measured alone, while a rank's own thread
takes and gives back pages without pause, and alone again. The rank zeroes every page, which is
bandwidth too; `not zeroed` is the same over a library whose zeroing does nothing.

What counts: copies beside the rank have at least 0.98 of their speed alone. Exits with 1 if not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from machine import MIB, describe
from offline_machine import versions
from rig import LIBRARY, Rig, open_driver, without_zeroing

LEAST = 0.98
KERNELS = 64  # of the graph
WARM = 3


class Churn:
    """A rank that takes one half of its pages while it gives back the other, until the end."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None
        self.taken = 0  # pages

    def __enter__(self) -> Churn:
        self.began = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.seconds = time.perf_counter() - self.began
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._turns()
        except BaseException as error:  # told by the main thread
            self.failure = error

    def _turns(self) -> None:
        """As an engine whose every step finds its pages ready: all is the background's work."""
        rig, half = self._rig, len(self._rig.pages) // 2
        coming, going = rig.pages[:half], rig.pages[half : 2 * half]
        mapped, released = (rig.rank.counters()[key] for key in ("mapped_ahead", "released"))
        first = True
        while not self._stopped.is_set():
            rig.segment.request(coming)
            if not first:
                rig.retire(going)
                released += half
                rig.await_pages("released", released)
            rig.settle(len(coming))
            mapped += half
            rig.await_pages("mapped_ahead", mapped)
            self.taken += half
            first = False
            coming, going = going, coming
        if not first:
            rig.retire(going)
            rig.drain()


class OnGpu:
    """Copies and replays on the current device."""

    def __init__(self, gib: float) -> None:
        count = int(gib * (1 << 30)) // 4
        self._from = torch.ones(count, device="cuda")
        self._to = torch.empty_like(self._from)
        self._small = torch.zeros(4096, device="cuda")
        self._graph = torch.cuda.CUDAGraph()
        self._small.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            for _ in range(KERNELS):
                self._small.add_(1)

    def copies(self, count: int) -> list[float]:
        """Seconds of each, by the device."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self._to.copy_(self._from)
            mark.record()
        torch.cuda.synchronize()
        return [one.elapsed_time(other) / 1e3 for one, other in pairwise(marks)]

    def replays(self, count: int) -> list[float]:
        """Seconds of each, by the host."""
        return timed(self._replay, count)

    def _replay(self) -> None:
        self._graph.replay()
        torch.cuda.synchronize()


class OnHost:
    """The same without a device, to try the program."""

    def __init__(self, gib: float) -> None:
        self._from = torch.ones(int(gib * (1 << 30)) // 4)
        self._to = torch.empty_like(self._from)

    def copies(self, count: int) -> list[float]:
        return timed(lambda: self._to.copy_(self._from), count)

    def replays(self, count: int) -> list[float]:
        return timed(lambda: self._to[:4096].add_(1), count)


def timed(work: Callable[[], Any], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def look(a: argparse.Namespace, work: Any) -> dict[str, float]:
    """Medians, and the 99th percentile of replays: GB/s read and written, µs."""
    copies = work.copies(a.copies + WARM)[WARM:]
    replays = sorted(work.replays(a.replays + WARM)[WARM:])
    return {
        "gb_per_s": 2 * a.gib * (1 << 30) / statistics.median(copies) / 1e9,
        "replay_us": 1e6 * statistics.median(replays),
        "replay_p99_us": 1e6 * replays[int(0.99 * (len(replays) - 1))],
    }


def measure(a: argparse.Namespace, work: Any, rig: Rig) -> dict[str, Any]:
    """The median over turns of each figure beside the rank, alone, and of what it is of alone."""
    turns: list[dict[str, dict[str, float]]] = []
    rates = []
    for _ in range(a.repeats):
        before = look(a, work)
        with Churn(rig) as churn:
            beside = look(a, work)
        after = look(a, work)
        rates.append(churn.taken * rig.page / churn.seconds / (1 << 30))
        alone = {name: (before[name] + after[name]) / 2 for name in before}
        share = {name: beside[name] / alone[name] for name in before}
        again = {name: after[name] / before[name] for name in before}
        turns.append({"alone": alone, "beside": beside, "of alone": share, "noise": again})
    found: dict[str, Any] = {
        kind: {
            name: round(statistics.median(turn[kind][name] for turn in turns), 4)
            for name in turns[0][kind]
        }
        for kind in turns[0]
    }
    found["speed of alone, by turn"] = [round(t["of alone"]["gb_per_s"], 4) for t in turns]
    found["mapped_gib_per_s"] = round(statistics.median(rates), 3)
    return found


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("out", type=Path)
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--mib", type=float, nargs="+", default=[2, 32], help="page sizes")
    p.add_argument("--gib", type=float, default=4, help="of the tensor that is copied")
    p.add_argument("--half", type=float, default=1, help="GiB that the rank takes at once")
    p.add_argument("--copies", type=int, default=400)
    p.add_argument("--replays", type=int, default=2000)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--library", default=LIBRARY, help="the device's; another one to try this")
    a = p.parse_args()
    real = a.library == LIBRARY
    if real:
        torch.cuda.set_device(a.device)
    work = OnGpu(a.gib) if real else OnHost(a.gib)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        libraries = {"": a.library, ", not zeroed": without_zeroing(folder, a.library)}
        for suffix, library in libraries.items():
            driver = open_driver(a.device, library)
            for mib in a.mib:
                page = int(mib * MIB)
                half = int(a.half * (1 << 30)) // page
                rig = Rig(folder / f"{page}{bool(suffix)}", page, 2 * half, driver, paced=True)
                key = f"{mib:g} MiB{suffix}"
                found[key] = measure(a, work, rig)
                rig.close()
                print(key, json.dumps(found[key]), flush=True)
    result = {
        "command": sys.argv,
        "machine": describe(a.device if real else None),
        "versions": versions(),
        "beside a rank": found,
    }
    a.out.write_text(json.dumps(result, indent=1) + "\n")
    least = min(values["of alone"]["gb_per_s"] for values in found.values())
    print("RESULT", f"{least:.4f} of the speed alone (at least {LEAST})", flush=True)
    sys.exit(int(least < LEAST))


if __name__ == "__main__":
    main()
