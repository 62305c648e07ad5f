"""Several ranks of an engine in the threads of one process, each with a rig of its own, that serve
the same requests by the same rules. No engine."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache import kv_storage
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from engine_sglang.rig import PAGE, PER_PAGE, Rig, request
from kvcached_core.engines.sglang import backend as backend_module
from kvcached_core.engines.sglang.device import CpuDevice
from kvcached_core.engines.sglang.ranks.team import Team
from kvcached_core.vmm import FaultyDriver, HostDriver

GUARD_S = 60  # against a hang
PATIENCE_S = 30


class _Here(threading.local):
    """Of the thread that is a rank."""

    backend: Any
    driver: FaultyDriver


_here = _Here()


class _Dispatch:
    """What SGLang's classes take for the process's backend."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_here.backend, name)


class _Device(CpuDevice):
    def make_driver(self) -> Any:
        _here.driver = FaultyDriver(HostDriver())
        return _here.driver


class ThreadTeam(Team):
    def __init__(self, rank: int, said: list[bytes], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(said)
        self._said, self._barrier = said, barrier

    def _gather(self, mine: bytes) -> list[bytes]:
        self._said[self.rank] = mine
        self._barrier.wait(GUARD_S)
        heard = list(self._said)
        self._barrier.wait(GUARD_S)
        return heard


class RankRig(Rig):
    def __init__(self, team: Team, directory: Path, **settings: Any) -> None:
        self.team = team
        super().__init__(directory, **settings)
        self.driver = _here.driver

    def activate(self) -> None:
        _here.backend = self.backend
        self.backend._memory.team = self.team

    def close(self) -> None:
        self.backend.close(graceful=True)


class Line:
    """How iterations are passed on: to the first rank's own stage before its step, to later stages
    behind it, as SGLang sends requests on. The first rank may be `lead` iterations ahead."""

    def __init__(self, ranks: int, later: set[int], lead: int = 3) -> None:
        self._later = later
        self.is_cut = threading.Event()
        self._queues: list[queue.Queue[int]] = [queue.Queue(lead) for _ in range(ranks)]

    def before(self, rank: int, turn: int) -> None:
        self._pass(rank, turn, later=False)
        if rank:
            assert self._get(self._queues[rank]) == turn

    def behind(self, rank: int, turn: int) -> None:
        self._pass(rank, turn, later=True)

    def _get(self, line: queue.Queue[int]) -> int:
        while True:
            try:
                return line.get(timeout=0.1)
            except queue.Empty:
                if self.is_cut.is_set():
                    raise RuntimeError("another rank failed") from None

    def _put(self, line: queue.Queue[int], turn: int) -> None:
        while True:
            try:
                return line.put(turn, timeout=0.1)
            except queue.Full:
                if self.is_cut.is_set():
                    raise RuntimeError("another rank failed") from None

    def _pass(self, rank: int, turn: int, *, later: bool) -> None:
        if rank == 0:
            for other in range(1, len(self._queues)):
                if (other in self._later) == later:
                    self._put(self._queues[other], turn)


class Ranks:
    """`later`: ranks of later stages."""

    def __init__(
        self, directory: Path, size: int = 2, later: set[int] | None = None, **settings: Any
    ) -> None:
        self.size = size
        self.last: int | None = None  # iteration, where a test ends in the midst of them
        self.line = Line(size, later or set())
        said, barrier = [b""] * size, threading.Barrier(size)
        given = {"check_ranks": "on", "reserve_wait_ms": 5, "reclaim_wait_ms": 5, **settings}
        self.rigs: list[Any] = [None] * size
        kv_storage._active = _Dispatch()
        backend_module.device_of = lambda kind, settings, index: _Device(settings)

        def make(rank: int) -> None:
            self.rigs[rank] = RankRig(ThreadTeam(rank, said, barrier), directory, **given)

        self.each(make)
        for rig in self.rigs:
            rig.backend._memory.board.patience = PATIENCE_S

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work` returns at each rank, in a thread of its own. Raises the first error."""
        results: list[Any] = [None] * self.size
        errors: list[tuple[float, Exception]] = []

        def run(rank: int) -> None:
            if self.rigs[rank] is not None:
                _here.backend = self.rigs[rank].backend
            try:
                results[rank] = work(rank)
            except Exception as error:
                errors.append((time.monotonic(), error))
                self.line.is_cut.set()

        threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_S + 30)
            assert not thread.is_alive(), "a rank hangs"
        if errors:
            raise min(errors, key=lambda found: found[0])[1]
        return results

    def serve(self, seed: int, turns: int) -> list[list[Any]]:
        """What each rank saw and did, iteration by iteration."""
        return self.each(lambda rank: Scheduler(self.rigs[rank], seed).serve(self.line, turns))

    def close(self) -> None:
        made = [rig for rig in self.rigs if rig is not None]
        for rig in reversed(made):
            _here.backend = rig.backend
            rig.close()
        kv_storage._active = kv_storage._static


class Scheduler:
    """Decides as SGLang's, by counts: admits in line what could be taken whole, retracts who came
    last, evicts before it takes. Each rank's time differs, and its requests do not."""

    def __init__(self, rig: Any, seed: int) -> None:
        self.rig = rig
        self._requests = random.Random(seed)
        self._time = random.Random(f"{seed} {rig.team.rank}")
        self._load = 0.1 + 0.15 * self._requests.randrange(3)
        self._waiting: list[Any] = []
        self._running: list[tuple[Any, list[torch.Tensor]]] = []
        self.retracted = self.finished = 0

    def serve(self, line: Line, turns: int) -> list[Any]:
        seen = []
        rank = self.rig.team.rank
        for turn in range(turns):
            line.before(rank, turn)
            self._arrive(turn)
            if self._time.random() < 0.3:
                time.sleep(self._time.random() * 0.004)
            running = SimpleNamespace(reqs=[r for r, _ in self._running], batch_is_full=False)
            self.rig.backend.begin_step(self._waiting, None, running)
            line.behind(rank, turn)
            self._admit()
            self._decode()
            seen.append((len(self._waiting), len(self._running), self.rig.available()))
        return [*seen, ("retracted", self.retracted, "finished", self.finished)]

    def _arrive(self, turn: int) -> None:
        if turn % 60 > 45:
            return  # it rests now and then
        if self._requests.random() < self._load:
            length = self._requests.randrange(10, 3 * PER_PAGE)
            self._waiting.append(request(length, self._requests.randrange(1, 60)))

    def _could_take(self) -> int:
        return int(self.rig.available() + self.rig.tree.evictable_size())

    def _take(self, tokens: int) -> torch.Tensor:
        lacking = tokens - self.rig.available()
        if lacking > 0:
            self.rig.tree.evict(EvictParams(num_tokens=lacking))
        slots: torch.Tensor = self.rig.take(tokens)
        self.rig.write(slots)
        return slots

    def _admit(self) -> None:
        while self._waiting and len(self._running) < 8:
            first = self._waiting[0]
            length = len(first.origin_input_ids) + len(first.output_ids)
            if length + 4 + len(self._running) > self._could_take():
                return
            self._running.append((self._waiting.pop(0), [self._take(length)]))

    def _decode(self) -> None:
        while self._running and len(self._running) > self._could_take():
            late, slots = self._running.pop()
            self.rig.allocator.free(torch.cat(slots))
            self._waiting.insert(0, late)
            self.retracted += 1
        for each, slots in list(self._running):
            slots.append(self._take(1))
            each.output_ids.append(0)
            if len(each.output_ids) >= each.sampling_params.max_new_tokens:
                self._running.remove((each, slots))
                self._finish(torch.cat(slots))

    def _finish(self, slots: torch.Tensor) -> None:
        self.finished += 1
        if self.finished % 3:
            self.rig.cache(slots)
        else:
            self.rig.allocator.free(slots)


class Neighbour(threading.Thread):
    """Takes and gives memory of the same budget, wants some, and comes and goes."""

    def __init__(self, budget: Any, seed: int, most: int) -> None:
        super().__init__(daemon=True)
        self._budget, self._random, self._most = budget, random.Random(seed), most
        self._stopped = threading.Event()

    def run(self) -> None:
        row = self._budget.join("neighbour", 0, self._most * PAGE, 0, 0, 100)
        held = 0
        while not self._stopped.wait(self._random.random() * 0.01):
            match self._random.randrange(4):
                case 0 if held < self._most:
                    if self._budget.lease(row, PAGE, 2**62, 0).name == "GRANTED":
                        held += 1
                case 1 if held:
                    self._budget.unlease(row, held * PAGE)
                    held = 0
                case 2:
                    self._budget.set_want(row, self._random.randrange(self._most) * PAGE)
                case _:
                    self._budget.set_want(row, 0)
        self._budget.unlease(row, held * PAGE)
        self._budget.leave(row)

    def stop(self) -> None:
        self._stopped.set()
        self.join(GUARD_S)
