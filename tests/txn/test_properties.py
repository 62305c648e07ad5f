"""Whatever happens to messages and ranks, in any phase: they agree, nothing is lost or owned twice,
and all ends within its deadline. Each history ends well, or with a failure that names its cause."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvcached_core.txn import Attempt, ProtocolError, Settle, Terms
from txn.mutants import MUTANTS, mutant
from txn.simulation import Packet, Simulation
from txn.world import Violation

TERMS = Terms(retry=2, grow=6, shrink=8, decide=12)
LONGEST = TERMS.shrink + TERMS.decide
EXAMPLES = int(os.environ.get("KVCACHED_HYPOTHESIS_EXAMPLES", "200"))
SOME = st.integers(0, 2**16)  # which of those there are


class Life(RuleBasedStateMachine):
    """An instance of up to four ranks, each with memory for some pages of its own."""

    @initialize(
        ranks=st.integers(1, 4),
        pages=st.lists(st.sampled_from(["virtual", "owned"]), min_size=1, max_size=4),
        spare=st.lists(st.integers(0, 4), min_size=4, max_size=4),
        newest_first=st.booleans(),
    )
    def construct(self, ranks: int, pages: list[str], spare: list[int], newest_first: bool) -> None:
        self.newest_first = newest_first
        self.sim = Simulation(ranks, tuple(pages), TERMS)  # type: ignore[arg-type]
        self.capacity = [pages.count("owned") + spare[at] for at in range(ranks)]
        self.stopped: set[int] = set()
        self.born: dict[int, int] = {}
        self.now = 0

    # --- what may happen ---

    @rule(seed=SOME, kind=st.sampled_from(["grow", "shrink"]))
    def begin(self, seed: int, kind: str) -> None:
        state = "virtual" if kind == "grow" else "owned"
        pages = [page for page, told in enumerate(self.sim.world.told) if told == state]
        some = tuple(page for page in pages if seed >> page & 1)
        if some and not self.sim.failure:
            self.born[self.sim.world.coordinator.next_id] = self.now
            self.sim.begin(kind, some)

    def reachable(self) -> list[Packet]:
        return [p for p in self.sim.flight if not (p.to_rank and p.rank in self.stopped)]

    @precondition(lambda self: self.reachable())
    @rule(seed=SOME, keep=st.sampled_from([False, False, True]))
    def deliver(self, seed: int, keep: bool) -> None:
        packets = self.reachable()
        newest = seed % 3 == 0
        self.sim.deliver(packets[-1 if newest else seed % len(packets)], keep)

    @precondition(lambda self: self.sim.flight)
    @rule(seed=SOME)
    def lose(self, seed: int) -> None:
        self.sim.lose(self.sim.flight[seed % len(self.sim.flight)])

    def at_work(self) -> list[tuple[int, Attempt | Settle]]:
        ranks = [at for at in range(len(self.capacity)) if at not in self.stopped]
        return [(at, work) for at in ranks for work in self.sim.running(at)]

    @precondition(lambda self: self.at_work())
    @rule(seed=SOME, refused=st.sampled_from([0, 0, 1, 3]), lost=st.sampled_from([0, 0, 0, 1, 2]))
    def work(self, seed: int, refused: int, lost: int) -> None:
        works = self.at_work()
        at, work = works[seed % len(works)]
        self.end_work(at, work, refused, lost)

    def end_work(self, at: int, work: Attempt | Settle, refused: int, lost: int) -> None:
        """What there is no memory for is refused; `refused` and `lost` say what else (bits)."""
        if isinstance(work, Settle):
            self.sim.work(at, work, (), [p for p in work.release if lost >> p & 1])
            return
        room = self.capacity[at] - self.held(at) if work.kind == "grow" else len(work.pages)
        gone = [page for page in work.pages if lost >> page & 1][:room]
        held = [page for page in work.pages if page not in gone and not refused >> page & 1]
        self.sim.work(at, work, held[: room - len(gone)], gone)

    @rule(seed=SOME)
    def fence(self, seed: int) -> None:
        at = seed % len(self.capacity)
        rank = self.sim.world.ranks[at]
        if rank.alive and at not in self.stopped and rank.fence < self.sim.world.epoch:
            self.sim.fence(at)

    @rule(times=st.sampled_from([1, 1, 1, TERMS.grow]))
    def tick(self, times: int) -> None:
        for _ in range(times):
            self.now += 1
            self.sim.tick()

    @rule(seed=SOME)
    def stop_or_go_on(self, seed: int) -> None:
        self.stopped ^= {seed % len(self.capacity)}

    @precondition(lambda self: self.sim.world.crashes == 0)
    @rule(seed=SOME, likely=st.integers(0, 9))
    def die(self, seed: int, likely: int) -> None:
        if likely == 0:
            self.sim.die(seed % len(self.capacity))

    @rule()
    def find_gone(self) -> None:
        for at in self.dead():
            self.sim.found_gone(at)

    # --- what must hold ---

    def dead(self) -> list[int]:
        return [at for at, rank in enumerate(self.sim.world.ranks) if not rank.alive]

    def held(self, at: int) -> int:
        return sum(state != "virtual" for state in self.sim.world.ranks[at].pages)

    @invariant()
    def no_rank_holds_more_than_it_has(self) -> None:
        assert all(self.held(at) <= room for at, room in enumerate(self.capacity))

    @invariant()
    def every_wait_is_bounded(self) -> None:
        for each in self.sim.world.coordinator.open:
            assert self.now - self.born[each.id] < LONGEST

    @invariant()
    def what_is_not_in_a_transaction_is_in_one_state_everywhere(self) -> None:
        world = self.sim.world
        for page, told in enumerate(world.told):
            if told in ("owned", "virtual"):
                assert {rank.pages[page] for rank in world.ranks if rank.alive} <= {told}

    def teardown(self) -> None:
        """From now on nothing is lost; who is stopped or dead stays it."""
        if not hasattr(self, "sim"):
            return
        silent = {*self.dead(), *self.stopped}
        failed = bool(self.sim.failure)
        excused = silent | self.may_be_late()
        asked = not failed and self.begin_anything()
        for _ in range(LONGEST + TERMS.retry):
            self.calm()
            self.sim.tick()
        assert not self.sim.world.coordinator.open
        if not failed and self.sim.failure:
            assert self.named() <= excused, self.sim.failure
        if asked and silent:
            assert self.sim.failure
        if not self.sim.failure:
            self.check_that_nothing_is_half_done()

    def may_be_late(self) -> set[int]:
        """Ranks whose answers to a decision were lost so often that the deadline is near."""
        return {
            at
            for each in self.sim.world.coordinator.open
            if each.phase == "deciding" and each.age + TERMS.retry >= TERMS.decide
            for at, answer in enumerate(each.answers)
            if answer is None
        }

    def begin_anything(self) -> bool:
        for kind, state in (("grow", "virtual"), ("shrink", "owned")):
            if pages := tuple(p for p, told in enumerate(self.sim.world.told) if told == state):
                self.sim.begin(kind, pages)
                return True
        return False

    def named(self) -> set[int]:
        """The ranks that the failure names."""
        words = self.sim.failure.removeprefix("rank ").split(" did ")[0].split(" is ")[0]
        return {int(word) for word in words.split(", ")}

    def calm(self) -> None:
        for at, rank in enumerate(self.sim.world.ranks):
            if rank.alive and at not in self.stopped:
                while self.sim.world.ranks[at].fence < self.sim.world.epoch:
                    self.sim.fence(at)
        while self.reachable() or self.at_work():
            for packet in self.reachable()[:: -1 if self.newest_first else 1]:
                self.sim.deliver(packet)
            for at, work in self.at_work():
                self.end_work(at, work, 0, 0)

    def check_that_nothing_is_half_done(self) -> None:
        for at, rank in enumerate(self.sim.world.ranks):
            if rank.alive and at not in self.stopped:
                assert not {*rank.pages} & {"prepared", "retained"}


def run(max_examples: int, **given: Any) -> None:
    chosen = settings(max_examples=max_examples, stateful_step_count=60, deadline=None, **given)
    run_state_machine_as_test(Life, settings=chosen)


def test_any_fault_in_any_phase() -> None:
    run(EXAMPLES, print_blob=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with mutant(name), pytest.raises((Violation, ProtocolError, AssertionError)):
        run(5000, phases=[Phase.generate], derandomize=True, report_multiple_bugs=False)
