"""A rank on a device, in a process of its own, that takes part in transactions; for ranks.py."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rig import Bare, open_driver

from kvcached_core.budget import Budget, Rank, Segment
from kvcached_core.txn.transport import Hello, RankServer
from kvcached_core.vmm import Arena

INSTANCE = "bench"
PATIENCE_S = 120  # of a start, which compiles a loop and opens a device
_processes = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Job:
    folder: Path
    """Of the segment, the budgets and the sockets."""
    segment: str
    start: str
    rank: int
    device: int
    page: int
    pages: int
    """That can be taken, beside the null page."""
    library: str


class RankProcess:
    """Answers each command, and first of all when it has started."""

    def __init__(self, job: Job) -> None:
        self._pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_live, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, command: str, number: int) -> None:
        """`step`: an engine's empty step with that epoch; `bare`: the bare loop, seconds; `end`."""
        self._pipe.send((command, number))

    def answer(self) -> Any:
        """Raises RuntimeError."""
        try:
            if self._pipe.poll(PATIENCE_S):
                return self._pipe.recv()
        except EOFError:
            pass
        raise RuntimeError("a rank's process ended, or does not answer")

    def close(self) -> None:
        try:
            self.tell("end", 0)
        except OSError:  # it has ended
            return
        self._process.join(PATIENCE_S)


def _live(pipe: Connection, job: Job) -> None:
    size = job.page * (job.pages + 1)
    device = f"bench:{job.rank}"
    budget = Budget.open(str(job.folder), device, size, 0)
    row = budget.join(INSTANCE, job.rank, size)
    driver = open_driver(job.device, job.library)
    arena = Arena.reserve(driver, size)
    segment = Segment.open(job.segment)
    extents = [(arena, job.page)]
    pace = {"pace": (1e30, 1e30)}
    rank = Rank(segment, job.rank, budget, device, row, driver, extents, **pace)
    server = RankServer(job.folder, Hello(INSTANCE, job.start, job.rank), rank)
    private = job.folder / f"rank{job.rank}"
    private.mkdir()
    bare = Bare(private, job.device, job.library)
    pipe.send("ready")
    while True:
        command, number = pipe.recv()
        if command == "end":
            server.close()
            rank.close()
            return
        if command == "step":
            rank.retire((), number)
            pipe.send("done")
        else:
            pipe.send(bare(job.page, job.pages, True)[0])
