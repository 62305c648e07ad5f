"""A worker of an engine without a model: a rank over the host driver, and its part in transactions.

Does what comes through a pipe; an answer each: `step EPOCH PAGES` as an engine's step does, `held`
the bytes that it has by its driver and by its budget, `zero PAGES` whether they read so, `fail`
makes driver calls fail, `close`.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvcached_core.budget import Budget, Rank, Segment
from kvcached_core.txn.transport import Hello, RankServer
from kvcached_core.vmm import Arena, FaultyDriver, HostDriver

GRANULE = 64 * 1024
INSTANCE = "engine"
PATIENCE_S = 30  # only a guard against a hang


@dataclass(frozen=True)
class Job:
    directory: Path
    segment: str
    start: str
    rank: int
    capacity_pages: int
    page_bytes: int

    @property
    def device(self) -> str:
        return f"host:rank{self.rank}"

    @property
    def sockets(self) -> Path:
        return self.directory / "sockets"


class Worker:
    def __init__(self, job: Job) -> None:
        self.job = job
        capacity = job.capacity_pages * job.page_bytes
        self.budget = Budget.open(str(job.directory), job.device, capacity, 0)
        self.row = self.budget.join(INSTANCE, job.rank, capacity)
        self.driver = FaultyDriver(HostDriver(GRANULE))
        segment = Segment.open(job.segment)
        self.arena = Arena.reserve(self.driver, segment.num_pages * job.page_bytes)
        extents = [(self.arena, job.page_bytes)]
        self.rank = Rank(segment, job.rank, self.budget, job.device, self.row, self.driver, extents)
        self.server = RankServer(job.sockets, Hello(INSTANCE, job.start, job.rank), self.rank)

    def step(self, epoch: int, pages: list[int]) -> str:
        self.rank.make_ready(pages)
        for page in pages:
            ctypes.memset(self.arena.base + page * self.job.page_bytes, 7, self.job.page_bytes)
        self.rank.retire((), epoch)
        return "done"

    def held(self) -> tuple[int, int]:
        """Pages leased and mapped. Between a lease and its last page the accounts differ."""
        end = time.monotonic() + PATIENCE_S
        while len(set(accounts := self._accounts())) > 1:
            assert time.monotonic() < end, f"lease, created, held: {accounts}"
            time.sleep(0.001)
        return accounts[0] // self.job.page_bytes, self.rank.mapped_bytes // self.job.page_bytes

    def _accounts(self) -> tuple[int, int, int]:
        (mine,) = (row for row in self.budget.rows() if row.rank == self.job.rank)
        return mine.lease, mine.created, self.driver.held_bytes()

    def zero(self, pages: list[int]) -> bool:
        self.rank.make_ready(pages)
        size = self.job.page_bytes
        return all(
            ctypes.string_at(self.arena.base + page * size, size) == bytes(size) for page in pages
        )

    def fail(self, call: str, count: int) -> str:
        for n in range(1, count + 1):
            self.driver.fail_at(call, n)
        return "done"

    def failure(self) -> str:
        return self.server.failure

    def close(self) -> str:
        self.server.close()
        self.driver.reset()
        self.rank.close()
        return "closed"


def live(pipe: Connection, job: Job) -> None:
    worker = Worker(job)
    pipe.send("ready")
    while True:
        name, *arguments = pipe.recv()
        answer: Any = getattr(worker, name)(*arguments)
        pipe.send(answer)
        if name == "close":
            return
