#!/usr/bin/env python3
"""Time to map a GiB, our path against the bare loop of driver calls; writes JSON.

    python benchmarks/gpu/driver.py OUT.json [--device 0] [--gib 16] [--repeats 5] [--mib 2 4 ...]

For each page size, in turn and `--repeats` times:
    bare           create, map, set access for each page, in C++, nothing beside
    bare, zeroed   the same, each page zeroed and waited for
    arena          Arena.map of a handle just created, from Python: what a rank's thread does a page
    rank           a rank that is asked for all pages at once: lease, create, publish, map ahead
each of the last two also over a library whose zeroing does nothing (`, not zeroed`), and
    rank, in the driver    of a rank that zeroes nothing, the time in those three calls alone
Figures are milliseconds a GiB, medians; beside them those to give the memory back.

What counts: `rank, in the driver` and `rank, not zeroed` are at most 1.2 times `bare`, `rank` at
most 1.2 times `bare, zeroed`. Exits with 1 if one is more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from machine import MIB, describe
from offline_machine import versions
from rig import LIBRARY, Bare, Rig, open_driver, timed_calls, without_zeroing

from kvcached_core.vmm import Arena, DeviceDriver

MOST = 1.2
HELD_AGAINST = {
    "rank, in the driver": "bare",
    "rank, not zeroed": "bare",
    "rank": "bare, zeroed",
}
Path_ = Callable[[], tuple[float, float]]  # one turn: seconds to take all pages, to give them back


def arena_turn(driver: DeviceDriver, page: int, pages: int) -> tuple[float, float]:
    arena = Arena.reserve(driver, page * pages)
    offsets = range(0, page * pages, page)
    begin = time.perf_counter()
    for offset in offsets:
        arena.map(offset, driver.create(page), fresh=False)
    middle = time.perf_counter()
    for offset in offsets:
        driver.release(arena.unmap(offset))
    return middle - begin, time.perf_counter() - middle


class Timed(NamedTuple):
    driver: DeviceDriver
    question: Callable[[], float]

    def turn(self, rig: Rig) -> tuple[float, float]:
        """As a turn, but of the time to take only what the driver had."""
        self.question()
        rig.take()
        return self.question(), rig.give_back()


class Drivers(NamedTuple):
    plain: dict[str, DeviceDriver]  # by what stands behind a path's name
    timed: Timed


def open_drivers(a: argparse.Namespace, folder: Path) -> Drivers:
    plain = {
        "": open_driver(a.device, a.library),
        ", not zeroed": open_driver(a.device, without_zeroing(folder, a.library)),
    }
    library, question = timed_calls(folder, a.library)
    return Drivers(plain, Timed(open_driver(a.device, library), question))


def paths(
    a: argparse.Namespace, folder: Path, bare: Bare, drivers: Drivers, page: int
) -> tuple[dict[str, Path_], list[Rig]]:
    pages = int(a.gib * (1 << 30)) // page
    found: dict[str, Path_] = {
        "bare": lambda: bare(page, pages, False),
        "bare, zeroed": lambda: bare(page, pages, True),
    }
    rigs = []
    for suffix, driver in drivers.plain.items():
        rig = Rig(folder / f"{page}{bool(suffix)}", page, pages, driver, paced=False)
        rigs.append(rig)
        found[f"arena{suffix}"] = lambda driver=driver: arena_turn(driver, page, pages)  # type: ignore[misc]
        found[f"rank{suffix}"] = lambda rig=rig: (rig.take(), rig.give_back())  # type: ignore[misc]
    timed = Rig(folder / f"{page}timed", page, pages, drivers.timed.driver, paced=False)
    found["rank, in the driver"] = lambda: drivers.timed.turn(timed)
    return found, [*rigs, timed]


def measure(
    a: argparse.Namespace, folder: Path, bare: Bare, drivers: Drivers, page: int
) -> dict[str, Any]:
    """Milliseconds a GiB of each path: medians, and all turns."""
    turns, rigs = paths(a, folder, bare, drivers, page)
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    names = list(turns)
    for turn in range(a.repeats + 1):  # the first one is not told
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            took = turns[name]()
            if turn:
                seen[name].append(took)
    for rig in rigs:
        rig.close()
    made: dict[str, Any] = {}
    for name, values in seen.items():
        maps, unmaps = ([1e3 * s / a.gib for s in side] for side in zip(*values, strict=True))
        made[name] = {
            "map": round(statistics.median(maps), 3),
            "unmap": round(statistics.median(unmaps), 3),
            "maps": [round(v, 3) for v in maps],
        }
    ratios = {n: round(made[n]["map"] / made[o]["map"], 3) for n, o in HELD_AGAINST.items()}
    return {"ms_per_gib": made, "ratios": ratios}


def show(page: int, found: dict[str, Any]) -> None:
    cells = (f"{name} {v['map']:.2f}/{v['unmap']:.2f}" for name, v in found["ms_per_gib"].items())
    print(f"{page / MIB:g} MiB, ms a GiB (map/unmap):", "; ".join(cells))
    for name, ratio in found["ratios"].items():
        print(f"    {name} / {HELD_AGAINST[name]}: {ratio}", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("out", type=Path)
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--gib", type=float, default=16)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--mib", type=float, nargs="+", default=[2, 4, 8, 16, 32, 64])
    p.add_argument("--library", default=LIBRARY, help="the device's; another one to try this")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = Bare(folder, a.device, a.library)
        drivers = open_drivers(a, folder)
        sizes = [int(mib * MIB) for mib in a.mib]
        found = {}
        for page in sizes:
            found[page] = measure(a, folder, bare, drivers, page)
            show(page, found[page])
    gpu = a.device if a.library == LIBRARY else None
    result = {
        "command": sys.argv,
        "machine": describe(gpu),
        "versions": versions(),
        "pages": {f"{page / MIB:g} MiB": values for page, values in found.items()},
    }
    a.out.write_text(json.dumps(result, indent=1) + "\n")
    worst = {name: max(v["ratios"][name] for v in found.values()) for name in HELD_AGAINST}
    print("RESULT", json.dumps(worst), f"(at most {MOST})", flush=True)
    sys.exit(int(max(worst.values()) > MOST))


if __name__ == "__main__":
    main()
