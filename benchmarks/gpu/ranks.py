#!/usr/bin/env python3
"""Growing on several GPUs at once, by one transaction, against the slower one's own driver time.

    python benchmarks/gpu/ranks.py OUT.json [--devices 0 1] [--pages 64] [--repeats 20] [--mib 2 32]

A rank a GPU, each in a process of its own; this one is the scheduler half and opens no device. For
each page size, in milliseconds, medians over the repeats:
    owned     from the call until all pages are owned by all ranks, and may be handed out
    mapped    and until every rank has them mapped and zeroed, which it does ahead of their use
    shrunk    from the call until all ranks have given them back (the step is an empty one)
    driver    of each rank: a bare loop of create, map, set access and zero, in C++, for as many
              pages; all ranks at the same time, as above
What counts: `mapped` is at most 1.5 times the slower rank's `driver`. Exits with 1 if it is more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from machine import MIB, describe
from offline_machine import versions
from rank_process import INSTANCE, Job, RankProcess
from rig import LIBRARY, LOOK_S

from kvcached_core.budget import Segment
from kvcached_core.txn.transport import Transactions

MOST = 1.5
PATIENCE_S = 60.0


class Engine:
    """The scheduler half, and its ranks."""

    def __init__(self, folder: Path, page: int, a: argparse.Namespace) -> None:
        folder.mkdir(mode=0o700)
        start = uuid.uuid4().hex
        path = str(folder / "ranks.segment")
        self.segment = Segment.create(path, a.pages + 1, len(a.devices))
        self.pages, self.page, self._epoch = range(1, a.pages + 1), page, 0
        jobs = [
            Job(folder, path, start, rank, device, page, a.pages, a.library)
            for rank, device in enumerate(a.devices)
        ]
        self.ranks = [RankProcess(job) for job in jobs]
        for rank in self.ranks:
            rank.answer()
        self._txn = Transactions(folder, INSTANCE, start, len(jobs))

    def turn(self) -> dict[str, Any]:
        """Seconds; `driver` by rank."""
        begin = time.perf_counter()
        self._txn.begin("grow", self.pages)
        self._end(owned=len(self.pages))
        owned = time.perf_counter() - begin
        self._await_mapped()
        mapped = time.perf_counter() - begin
        begin = time.perf_counter()
        self._epoch += 1
        self._txn.begin("shrink", self.pages, self._epoch)
        for rank in self.ranks:
            rank.tell("step", self._epoch)
        self._end(owned=0)
        shrunk = time.perf_counter() - begin
        for rank in self.ranks:
            rank.answer()
        for rank in self.ranks:
            rank.tell("bare", 0)
        driver = [rank.answer() for rank in self.ranks]
        return {"owned": owned, "mapped": mapped, "shrunk": shrunk, "driver": driver}

    def _end(self, owned: int) -> None:
        """Waits for the transaction."""
        seen = self._txn.progress()
        while not (ended := self._txn.take_ended()):
            if self._txn.failure:
                raise RuntimeError(self._txn.failure)
            seen = self._txn.wait_progress(seen, 1000)
        ((_, found),) = ended
        if len(found.owned) != owned or found.lost:
            raise RuntimeError(f"{len(found.owned)} pages are owned, not {owned}: {found}")

    def _await_mapped(self) -> None:
        wanted = self.page * (1 + len(self.pages))
        end = time.monotonic() + PATIENCE_S
        for rank in range(len(self.ranks)):
            while int(self.segment.rank_info(rank)["mapped_bytes"]) < wanted:
                if (failure := self.segment.failure()) or time.monotonic() > end:
                    raise RuntimeError(failure or f"rank {rank} does not map")
                time.sleep(LOOK_S)

    def close(self) -> None:
        self._txn.close()
        for rank in self.ranks:
            rank.close()


def measure(engine: Engine, repeats: int) -> dict[str, Any]:
    """Milliseconds."""
    turns = [engine.turn() for _ in range(repeats + 1)][1:]  # the first one is not told
    made: dict[str, Any] = {}
    for name in ("owned", "mapped", "shrunk"):
        values = sorted(1e3 * turn[name] for turn in turns)
        made[name] = round(statistics.median(values), 3)
        made[f"{name}, all"] = [round(value, 3) for value in values]
    by_rank = zip(*(turn["driver"] for turn in turns), strict=True)
    made["driver"] = [round(1e3 * statistics.median(took), 3) for took in by_rank]
    made["ratio"] = round(made["mapped"] / max(made["driver"]), 3)
    return made


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("out", type=Path)
    p.add_argument("--devices", type=int, nargs="+", default=[0, 1])
    p.add_argument("--pages", type=int, default=64)
    p.add_argument("--repeats", type=int, default=20)
    p.add_argument("--mib", type=float, nargs="+", default=[2, 32])
    p.add_argument("--library", default=LIBRARY, help="the device's; another one to try this")
    a = p.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for mib in a.mib:
            engine = Engine(Path(name) / f"{mib:g}", int(mib * MIB), a)
            try:
                found[f"{mib:g} MiB"] = measure(engine, a.repeats)
            finally:
                engine.close()
            print(f"{mib:g} MiB:", json.dumps(found[f"{mib:g} MiB"]), flush=True)
    gpu = a.devices[0] if a.library == LIBRARY else None
    result = {
        "command": sys.argv,
        "machine": describe(gpu),
        "versions": versions(),
        "pages": a.pages,
        "ms": found,
    }
    a.out.write_text(json.dumps(result, indent=1) + "\n")
    worst = max(values["ratio"] for values in found.values())
    print("RESULT", json.dumps({"ratio": worst}), f"(at most {MOST})", flush=True)
    sys.exit(int(worst > MOST))


if __name__ == "__main__":
    main()
