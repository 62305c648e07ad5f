"""An engine's scheduler half without a scheduler, and its workers in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from kvcached_core.budget import Budget, Segment
from kvcached_core.txn import Terms
from kvcached_core.txn.transport import TERMS, Transactions
from txn.worker import GRANULE, INSTANCE, Job, live

PATIENCE_S = 60  # only a guard against a hang
_processes = multiprocessing.get_context("forkserver")


@cache
def _start_server() -> None:
    """Of processes that have imported all they need; it reads its path from the environment."""
    _processes.set_forkserver_preload(["txn.worker"])
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()


def eventually(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.001)


class Member:
    def __init__(self, job: Job) -> None:
        self.job = job
        _start_server()
        self._pipe, theirs = _processes.Pipe()
        self.process = _processes.Process(target=live, args=(theirs, job), daemon=True)
        self.process.start()
        theirs.close()
        self._unanswered = 0

    def wait_ready(self) -> None:
        assert self._answer() == "ready"

    def do(self, *command: Any) -> Any:
        """The answer to a command, behind those that were only asked."""
        while self._unanswered:
            self._answer()
            self._unanswered -= 1
        self._pipe.send(command)
        return self._answer()

    def close(self) -> None:
        if self.process.is_alive():
            assert self.do("close") == "closed"
            self.process.join(PATIENCE_S)

    def ask(self, *command: Any) -> None:
        self._unanswered += 1
        self._pipe.send(command)

    def _answer(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), f"rank {self.job.rank} does not answer"
        return self._pipe.recv()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.join(PATIENCE_S)


class Instance:
    def __init__(
        self,
        directory: Path,
        capacities: list[int],
        pages: int = 64,
        terms: Terms = TERMS,
        page_bytes: tuple[int, ...] = (GRANULE,),
    ) -> None:
        """A rank for each capacity, in pages, of a device of its own; ranks take their turns in
        the sizes of a page."""
        self.start = uuid4().hex
        segment = str(directory / f"{self.start}.segment")
        self.segment = Segment.create(segment, pages, len(capacities))
        jobs = [
            Job(directory, segment, self.start, rank, capacity, page_bytes[rank % len(page_bytes)])
            for rank, capacity in enumerate(capacities)
        ]
        self.members = [Member(job) for job in jobs]
        for member in self.members:
            member.wait_ready()
        self.sockets: Path = jobs[0].sockets
        self.txn = Transactions(self.sockets, INSTANCE, self.start, len(jobs), terms)
        self.epoch = 0
        self.owned: set[int] = set()
        self.lost: set[int] = set()

    def wait(self) -> list[Any]:
        """Until nothing is open, or the pool has failed; what ended."""
        ended: list[Any] = []
        end = time.monotonic() + PATIENCE_S
        while True:
            seen = self.txn.progress()
            ended += self.txn.take_ended()
            if self.txn.failure or not self.txn.is_open():
                break
            assert time.monotonic() < end, "a transaction does not end"
            self.txn.wait_progress(seen, 1000)
        for asked, each in ended:
            self.owned = (self.owned - {*asked.pages}) | {*each.owned}
            self.lost |= {*each.lost}
        return [each for _, each in ended]

    def grow(self, *pages: int) -> list[Any]:
        self.txn.begin("grow", pages)
        return self.wait()

    def step(self, *pages: int) -> int:
        """Of all ranks: an update of that epoch, which maps these pages."""
        self.epoch += 1
        for member in self.members:
            assert member.do("step", self.epoch, list(pages)) == "done"
        return self.epoch

    def shrink(self, *pages: int) -> list[Any]:
        self.txn.begin("shrink", pages, self.epoch + 1)
        self.step()
        return self.wait()

    def held(self) -> list[int]:
        """Pages that each rank has memory for, the null page aside."""
        return [member.do("held")[0] - 1 for member in self.members]

    def budgets(self) -> list[Budget]:
        return [Budget.open(str(m.job.directory), m.job.device, 0, 0) for m in self.members]

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.end()

    def end(self) -> None:
        self.txn.close()
        for member in self.members:
            member.end()

    def check_all_is_given_back(self) -> None:
        for budget in self.budgets():
            budget.reap()
            assert budget.rows() == []


@contextmanager
def instance(directory: Path, capacities: list[int], **given: Any) -> Iterator[Instance]:
    made = Instance(directory, capacities, **given)
    try:
        yield made
        made.close()
        made.check_all_is_given_back()
    finally:
        made.end()
