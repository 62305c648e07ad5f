"""`kill -9` at random instants of the life of a budget's members.

After each the memory is the others' within two seconds, by their own doing; the record holds only
what can be; the victim's segment tells what it did last. In the end not one byte is missing.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest

import kvcached_core
from chaos.engine import DEVICE, PAGE, PATIENCE_S, eventually
from chaos.scale import scale
from kvcached_core.budget import Budget, Grant, create_segment, read_segment, remove_segment

MEMBERS, CAPACITY_PAGES = 4, 24
CAPACITY = CAPACITY_PAGES * PAGE
RECORD = "host%3Achaos.record"
# The record's bytes: see csrc/budget/record_layout.h.
HEADER = struct.Struct("<8sII24x24x2Q")
HEADER_BYTES = ROW_BYTES = 192
TAKEN, PID, LEASE = 0, 3, 8
MEMORY_IS_THE_OTHERS_S = 2
KILLS = scale(ci=100, nightly=1000)


class Server:
    def __init__(self, directory: Path) -> None:
        root = Path(kvcached_core.__file__).parents[1]
        tests = Path(__file__).parents[1]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("member.py")), directory, str(CAPACITY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": f"{root}:{tests}"},
        )

    def start(self, name: str, seed: int) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{name} {seed}\n".encode())
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "no answer"
        answer = self.process.stdout.readline()
        assert answer, f"it ended with {self.process.wait(PATIENCE_S)}"
        return int(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Chaos:
    directory: Path
    budget: Budget
    server: Server
    rng: random.Random
    living: dict[str, int] = field(default_factory=dict)  # name -> pid
    started: int = 0
    waits: list[float] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        """Names come back, as those of engines that are started again do."""
        name = next(f"m{n}" for n in range(MEMBERS) if f"m{n}" not in self.living)
        self.started += 1
        self.living[name] = self.server.start(name, self.started)

    def rows(self) -> list[tuple[int, ...]]:
        """The taken rows of the record at one moment, which must be one that can be."""
        with (self.directory / RECORD).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # leases rise only under it
            data = file.read()
            fcntl.flock(file, fcntl.LOCK_UN)
        magic, version, count, capacity, headroom = HEADER.unpack_from(data)
        assert (magic, version, count, headroom) == (b"kvbudget", 2, 64, 0)
        assert (capacity, len(data)) == (CAPACITY, HEADER_BYTES + 64 * ROW_BYTES)
        found = [
            struct.unpack_from("24Q", data, at) for at in range(HEADER_BYTES, len(data), ROW_BYTES)
        ]
        assert all(row[TAKEN] in (0, 1) for row in found)
        assert sum(row[LEASE] for row in found) <= CAPACITY
        return [row for row in found if row[TAKEN]]

    def check_members(self) -> None:
        assert {row.pid for row in self.budget.rows()} <= {*self.living.values()}
        assert not list(self.directory.glob("*.died")), self.last_words()
        self.seen["pages leased, of all looked at"] += (
            sum(row[LEASE] for row in self.rows()) // PAGE
        )
        self.seen["pages there were"] += CAPACITY_PAGES

    def last_words(self) -> str:
        return "\n".join(path.read_text() for path in self.directory.glob("*.died"))

    def kill(self, names: list[str]) -> None:
        for name in names:
            os.kill(self.living[name], signal.SIGKILL)
        killed = time.monotonic()
        gone = {self.living.pop(name) for name in names}
        if self.living:
            while any(row[PID] in gone for row in self.rows()):
                waited = time.monotonic() - killed
                assert waited < MEMORY_IS_THE_OTHERS_S, self.last_words()
                time.sleep(0.001)
            self.waits.append(time.monotonic() - killed)
        else:
            eventually(lambda: not self.budget.rows(), "all dead")
        # Its name is free when it is gone, as whoever starts it again will see to.
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in gone), "gone")
        for name in names:
            self.read(self.directory / "instances" / f"{name}.segment")

    def read(self, path: Path) -> None:
        """A victim's segment, if it came so far: whole records, in order, at most one torn each."""
        if not path.exists():
            self.seen["before it had a segment"] += 1
            return
        report = read_segment(str(path))
        assert report["torn"] <= 2
        self.seen["torn records"] += report["torn"]
        for who in ("scheduler", 0):
            mine = [t["sequence"] for t in report["transitions"] if t["who"] == who]
            assert mine == [*range(mine[0], mine[0] + len(mine))] if mine else True
        for rank in report["ranks"]:
            self.seen["before it joined"] += not rank["joined"]
            assert rank["failure"] == ""
        last = report["transitions"][-1] if report["transitions"] else None
        self.seen[f"last: {last['from']} -> {last['to']}" if last else "no transition"] += 1


@contextmanager
def chaos(directory: Path, budget: Budget, seed: int) -> Iterator[Chaos]:
    made = Chaos(directory, budget, Server(directory), random.Random(seed))
    try:
        yield made
    finally:
        for pid in made.living.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        made.server.close()


@pytest.mark.slow
def test_the_memory_of_the_killed_is_the_others(tmp_path: Path) -> None:
    budget = Budget.open(str(tmp_path), DEVICE, CAPACITY, 0)
    killed = 0
    with chaos(tmp_path, budget, seed=11) as all_:
        while killed < KILLS:
            while len(all_.living) < MEMBERS:
                all_.start()
            time.sleep(all_.rng.random() * all_.rng.choice([0.002, 0.02, 0.05]))
            all_.check_members()
            # Mostly one, now and then several or all of them at the same time.
            count = all_.rng.choice([1] * 12 + [2, 3, MEMBERS])
            victims = all_.rng.sample(sorted(all_.living), min(count, KILLS - killed))
            all_.kill(victims)
            killed += len(victims)
        all_.check_members()
        all_.kill(sorted(all_.living))
    budget.reap()
    assert budget.rows() == []
    assert (tmp_path / RECORD).read_bytes()[HEADER_BYTES:] == bytes(64 * ROW_BYTES)
    row = budget.join("last", 0, CAPACITY)
    assert budget.lease(row, CAPACITY, CAPACITY, 1000) == Grant.GRANTED
    budget.unlease(row, CAPACITY)
    # Who was killed while it buried others may have left one too many, until the next start.
    remove_segment(create_segment(tmp_path, "last", 1, 1))
    assert len([*(tmp_path / "postmortem").iterdir()]) <= 8
    assert list(tmp_path.glob(".*")) == list(tmp_path.glob("*.died")) == []
    waits = sorted(all_.waits)
    print(
        f"{killed} killed of {all_.started}; rows gone after: median {median(waits) * 1e3:.1f} ms, "
        f"p99 {waits[int(0.99 * len(waits))] * 1e3:.1f} ms, most {waits[-1] * 1e3:.1f} ms"
    )
    print(dict(sorted(all_.seen.items())))
