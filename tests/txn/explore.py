"""An explicit-state model checker: every state that can be reached, each once.

When the pool has failed nobody tells the ranks anything new, so that each goes its own way: from
there on they are followed one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from kvcached_core.txn import ProtocolError
from txn import world as w
from txn.world import Label, Limits, Rank, Violation, World


@dataclass
class Counterexample(Exception):
    """The shortest way to what must not be."""

    what: str
    steps: list[Label]

    def __str__(self) -> str:
        return "\n".join([f"{self.what}, after:", *(" ".join(map(str, s)) for s in self.steps)])


@dataclass
class Found:
    states: int = 0
    transitions: int = 0
    failures: int = 0  # states in which the pool has failed
    outcomes: set[tuple[str, ...]] = field(default_factory=set)  # of those in which all is over


class Search:
    """One exploration; raises Counterexample."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.found = Found()
        self._came_from: dict[World, tuple[World, Label] | None] = {}
        self._before: dict[World, list[World]] = {}
        self._rank_moves = lru_cache(maxsize=None)(self._find_rank_moves)
        self._alone: set[tuple[Rank, int]] = set()

    def run(self, first: World) -> Found:
        first = w.canonical(first)
        self._came_from[first] = None
        todo = deque([first])
        while todo:
            world = todo.popleft()
            try:
                self._look_at(world)
                for label, after in self._moves(world):
                    self.found.transitions += 1
                    if self._is_new(world, label, after):
                        todo.append(after)
            except (Violation, ProtocolError) as error:
                raise Counterexample(str(error), self._way(world)) from error
        self.found.states = len(self._came_from)
        self._check_that_all_can_end()
        return self.found

    def _moves(self, world: World) -> Iterator[tuple[Label, World]]:
        if world.coordinator.failure:
            return
        for label, after in w.begins(world, self.limits):
            yield label, w.canonical(after)
        for label, after in w.coordinator_moves(world):
            yield label, w.canonical(after)
        for at, rank in enumerate(world.ranks):
            if not rank.alive:
                continue
            for label, moved in self._rank_moves(rank, world.epoch):
                yield (at, *label), w.canonical(w.put(world, at, moved))
            if world.crashes < self.limits.crashes:
                yield (at, "dies"), w.canonical(w.die(world, at))

    def _find_rank_moves(self, rank: Rank, epoch: int) -> list[tuple[Label, Rank]]:
        moves = w.rank_moves(rank, epoch, self.limits.losses)
        return [(label, moved) for label, moved in moves if moved != rank]

    def _look_at(self, world: World) -> None:
        w.check(world)
        if world.coordinator.failure:
            self.found.failures += 1
            for rank in world.ranks:
                if rank.alive:
                    self._follow(rank, world.epoch)
        elif w.is_over(world):
            self.found.outcomes.add(world.told)

    def _follow(self, rank: Rank, epoch: int) -> None:
        todo = [rank]
        while todo:
            at = todo.pop()
            if (at, epoch) not in self._alone:
                self._alone.add((at, epoch))
                todo += [moved for _, moved in self._rank_moves(at, epoch)]

    def _is_new(self, world: World, label: Label, after: World) -> bool:
        self._before.setdefault(after, []).append(world)
        if after in self._came_from:
            return False
        self._came_from[after] = (world, label)
        return True

    def _check_that_all_can_end(self) -> None:
        """No deadlock: from everywhere there is a way to an end."""
        todo = [world for world in self._came_from if w.is_over(world)]
        good = set(todo)
        while todo:
            for earlier in self._before.get(todo.pop(), ()):
                if earlier not in good:
                    good.add(earlier)
                    todo.append(earlier)
        for world in self._came_from:
            if world not in good:
                raise Counterexample("no way to an end", self._way(world))

    def _way(self, world: World) -> list[Label]:
        steps: list[Label] = []
        came = self._came_from[world]
        while came is not None:
            steps.append(came[1])
            came = self._came_from[came[0]]
        return steps[::-1]
