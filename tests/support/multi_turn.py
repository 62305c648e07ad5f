"""A made-up load of multi-turn conversations with prefix reuse, as an allocation log.

    python tests/support/multi_turn.py OUT.log [--seconds 600] [--seed 0]

Conversations arrive in waves, start with one of a few shared system prompts, think between turns,
send their whole history again with each turn, and leave. What an engine would ask of its block pool
is written pass by pass: chunked prefill, decoding, prefix hits of blocks nobody holds, and blocks
given back, last one first. Everything follows from the seed; time is made up too.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from kvcached_core.pool import allocation_log as log


@dataclass(frozen=True)
class Load:
    """Tokens and seconds. The defaults keep about 50 conversations of some 1,200 tokens."""

    seconds: float = 600.0
    seed: int = 0
    block_tokens: int = 16
    pass_seconds: float = 0.025
    chunk_tokens: int = 2048
    """Prefill tokens of one pass at most."""
    arrivals_per_second: float = 0.5
    wave_seconds: float = 200.0
    wave_depth: float = 0.8
    """The rate of arrivals swings by this share of its mean."""
    system_prompts: int = 6
    system_tokens: tuple[int, int] = (256, 1536)
    mean_turns: float = 5.0
    message_tokens: tuple[float, float] = (60.0, 0.9)
    """Median and sigma of a log-normal, as are the answer's."""
    answer_tokens: tuple[float, float] = (200.0, 0.7)
    think_seconds: float = 15.0


@dataclass
class _Conversation:
    system: int
    turns_left: int
    chain: list[int] = field(default_factory=list)  # handles of full blocks, from the start
    tokens: int = 0  # of the history


@dataclass
class _Request:
    conversation: _Conversation
    blocks: list[int]
    computed: int
    prompt: int
    answer: int

    @property
    def total(self) -> int:
        return self.prompt + self.answer


class MultiTurn:
    """Iterate once: records in order. `live_peak` is then the most blocks referenced at once."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._random = Random(load.seed)
        self._references: dict[int, int] = {}
        self._handles = itertools.count()
        low, high = load.system_tokens
        self._system_tokens = [self._random.randint(low, high) for _ in range(load.system_prompts)]
        self._systems: dict[int, list[int]] = {}
        self.live_peak = 0
        self._live = 0

    def __iter__(self) -> Iterator[log.Record]:
        load = self._load
        events: list[tuple[float, int, _Conversation]] = []
        order = itertools.count()
        arrival = self._next_arrival(0.0)
        now, running, waiting = 0.0, [], []
        while now < load.seconds:
            while arrival <= now:
                heapq.heappush(events, (arrival, next(order), self._arrive()))
                arrival = self._next_arrival(arrival)
            while events and events[0][0] <= now:
                waiting.append(heapq.heappop(events)[2])
            yield from self._pass(running, waiting)
            yield log.Record(log.PASS, number=round(now * 1000, 3))
            now += load.pass_seconds
            for request in [r for r in running if r.computed >= r.total]:
                running.remove(request)
                yield from self._finish(request)
                if request.conversation.turns_left:
                    later = now + self._random.expovariate(1 / load.think_seconds)
                    heapq.heappush(events, (later, next(order), request.conversation))
            if not running and not waiting:
                yield log.Record(log.IDLE, number=round(now * 1000, 3))
                now = max(now, min(arrival, events[0][0] if events else arrival))

    # --- what comes when ---

    def _next_arrival(self, now: float) -> float:
        """A Poisson process whose rate swings, by thinning."""
        load = self._load
        most = load.arrivals_per_second * (1 + load.wave_depth)
        while True:
            now += self._random.expovariate(most)
            wave = math.sin(2 * math.pi * now / load.wave_seconds)
            if self._random.random() * most <= load.arrivals_per_second * (
                1 + load.wave_depth * wave
            ):
                return now

    def _arrive(self) -> _Conversation:
        turns = 1
        while self._random.random() > 1 / self._load.mean_turns:
            turns += 1
        system = self._random.randrange(self._load.system_prompts)
        return _Conversation(system, turns, tokens=self._system_tokens[system])

    def _length(self, median_and_sigma: tuple[float, float]) -> int:
        median, sigma = median_and_sigma
        return max(1, min(4096, round(self._random.lognormvariate(math.log(median), sigma))))

    # --- one pass ---

    def _pass(self, running: list[_Request], waiting: list[_Conversation]) -> Iterator[log.Record]:
        budget = self._load.chunk_tokens
        for request in running:
            tokens = 1 if request.computed >= request.prompt else request.prompt - request.computed
            tokens = min(tokens, budget)
            budget -= tokens
            yield from self._compute(request, tokens)
        while waiting and budget > 0:
            request = self._start(waiting.pop(0))
            running.append(request)
            hits = [h for h in request.blocks if self._references[h] == 0]
            for handle in request.blocks:
                self._references[handle] += 1
            self._live += len(hits)
            if hits:
                yield log.Record(log.TAKE, hits)
            tokens = min(budget, request.prompt - request.computed)
            budget -= tokens
            yield from self._compute(request, tokens)
        self.live_peak = max(self.live_peak, self._live)

    def _start(self, conversation: _Conversation) -> _Request:
        conversation.turns_left -= 1
        if not conversation.chain:
            conversation.chain = list(self._systems.get(conversation.system, []))
        prompt = conversation.tokens + self._length(self._load.message_tokens)
        answer = self._length(self._load.answer_tokens)
        computed = len(conversation.chain) * self._load.block_tokens
        return _Request(conversation, list(conversation.chain), computed, prompt, answer)

    def _compute(self, request: _Request, tokens: int) -> Iterator[log.Record]:
        request.computed += tokens
        missing = -(-request.computed // self._load.block_tokens) - len(request.blocks)
        if missing > 0:
            handles = [next(self._handles) for _ in range(missing)]
            self._references.update(dict.fromkeys(handles, 1))
            request.blocks += handles
            self._live += missing
            yield log.Record(log.POP, number=missing)
        conversation = request.conversation
        full = self._system_tokens[conversation.system] // self._load.block_tokens
        if request.computed >= request.prompt and conversation.system not in self._systems:
            self._systems[conversation.system] = request.blocks[:full]

    def _finish(self, request: _Request) -> Iterator[log.Record]:
        full = request.computed // self._load.block_tokens
        request.conversation.chain = request.blocks[:full]
        request.conversation.tokens = request.computed
        for handle in request.blocks:
            self._references[handle] -= 1
        dead = [h for h in request.blocks[full:] if self._references[h] == 0]
        kept = [h for h in reversed(request.blocks[:full]) if self._references[h] == 0]
        self._live -= len(dead) + len(kept)
        if dead:
            yield log.Record(log.FREE, dead)
        if kept:
            yield log.Record(log.CACHE, kept)


def write(path: Path, load: Load, header: log.Header) -> None:
    """The load as a log, as an engine with this pool would have written it."""
    with path.open("w", encoding="ascii") as out:
        out.write(f"{log.MAGIC} {log.VERSION} {json.dumps(asdict(header))}\n")
        for record in MultiTurn(load):
            out.write(log.format_record(record))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--seed", type=int, default=Load.seed)
    parser.add_argument("--num-blocks", type=int, default=8192)
    given = parser.parse_args()
    header = log.Header(given.num_blocks, 16, 16 * (2 << 20), 2, None)
    write(given.out, Load(seconds=given.seconds, seed=given.seed), header)


if __name__ == "__main__":
    main()
