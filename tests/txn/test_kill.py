"""SIGKILL and SIGSTOP of a rank at a random instant of growing and shrinking: what is under way
ends or fails within its deadline, the failure names the rank, and everything is given back."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from chaos.scale import scale
from kvcached_core.txn import Terms
from txn.instance import Instance

RANKS, PAGES = 3, 32
ROUNDS = scale(ci=200, nightly=2000)
TERMS = Terms(retry=1, grow=5, shrink=5, decide=10)


class Round:
    """An engine that grows and shrinks, until one of its ranks is hit."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.engine = Instance(directory, [PAGES] * RANKS, pages=PAGES, terms=TERMS)
        self.rng = rng
        self.victim = rng.randrange(RANKS)

    def begin_something(self) -> None:
        engine, rng = self.engine, self.rng
        virtual = sorted({*range(1, PAGES)} - engine.owned - engine.lost)
        if engine.owned and (rng.random() < 0.5 or not virtual):
            pages = rng.sample(sorted(engine.owned), rng.randint(1, len(engine.owned)))
            engine.txn.begin("shrink", pages, engine.epoch + 1)
            engine.epoch += 1
            for member in engine.members:
                member.ask("step", engine.epoch, [])
        else:
            engine.txn.begin("grow", rng.sample(virtual, rng.randint(1, len(virtual))))

    def run(self) -> str:
        for _ in range(self.rng.randint(0, 3)):
            self.begin_something()
            self.engine.wait()
        self.begin_something()
        time.sleep(self.rng.random() * self.rng.choice([0.0005, 0.003, 0.01]))
        way = self.rng.choice(["kill", "stop", "pause"])
        victim = self.engine.members[self.victim]
        victim.signal(signal.SIGKILL if way == "kill" else signal.SIGSTOP)
        if way == "pause":
            time.sleep(self.rng.random() * 0.2)
            victim.signal(signal.SIGCONT)
        self.engine.wait()
        self.check(way)
        return f"{way}: {'failed' if self.engine.txn.failure else 'ended'}"

    def check(self, way: str) -> None:
        failure = self.engine.txn.failure
        if way == "pause":
            assert not failure
        elif failure:
            assert failure.startswith(f"rank {self.victim} ")

    def end(self) -> None:
        """The living close as they do, the victim is dead by now or dies."""
        self.engine.members[self.victim].end()
        for at, member in enumerate(self.engine.members):
            if at != self.victim:
                member.close()
        self.engine.end()
        self.engine.check_all_is_given_back()


@pytest.mark.slow
def test_a_rank_is_hit_at_a_random_instant(tmp_path: Path) -> None:
    rng = random.Random(7)
    seen: Counter[str] = Counter()
    took = []
    for number in range(ROUNDS):
        directory = tmp_path / str(number)
        directory.mkdir()
        life = Round(directory, rng)
        begun = time.monotonic()
        try:
            seen[life.run()] += 1
            took.append(time.monotonic() - begun)
            life.end()
        finally:
            life.engine.end()
    print(f"{dict(seen)}; median {median(took):.3f} s, most {max(took):.3f} s")
    assert seen.total() == ROUNDS
    assert seen["stop: failed"] and seen["kill: failed"] and seen["pause: ended"]
