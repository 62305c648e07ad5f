"""Two engines of one budget, a random life, and any driver call that may fail at any time.

After each step: no block has two owners, no stamp is lost, every page and every byte is in one
place (rule 2 of the architecture), and the record, the rank and the memory file agree.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chaos.engine import DEVICE, PAGE, Engine, make_segment
from chaos.scale import scale
from kvcached_core.budget import Budget
from kvcached_core.vmm import DriverError, Quarantined

PAGES, CAPACITY = 8, 10
NAMES = ("one", "two")
WHO = st.sampled_from(NAMES)
# `zero` is not among them: the host driver's memory comes zeroed, so it is never called.
IN_LIFE = ("create", "release", "map", "set_access", "unmap", "free_bytes")
Fault = tuple[str, int, str]  # kind of call, which of them from now (0: all), error
FAULTS = st.none() | st.tuples(
    st.sampled_from(IN_LIFE), st.integers(0, 4), st.sampled_from(["error", "oom"])
)
COUNTS = st.sampled_from([1, 3, 8, 12, 20])
SHARES = st.sampled_from([1, 0.75, 0.5, 0.25, 0])
AT_START = ("reserve", "create", "map", "set_access", "free_bytes", "none")


class Place:
    """A record that all examples use: each new one costs a descriptor for good. One on which a
    driver has kept memory is left alone, as its lease is for the process's life."""

    def __init__(self) -> None:
        self.serial = 0
        self.renew()

    def renew(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.budget = Budget.open(self.directory.name, DEVICE, CAPACITY * PAGE, 0)

    def start(self, name: str, fault: str = "none", n: int = 1) -> Engine | None:
        """None, and nothing held, if the fault kept the engine from starting."""
        self.serial += 1
        name = f"{name}{self.serial}"
        segment = make_segment(Path(self.directory.name), name, PAGES)
        before = len(self.budget.rows())
        driver = Engine.__dataclass_fields__["driver"].default_factory()  # type: ignore[misc]
        if fault != "none":
            driver.fail_at(fault, n)
        try:
            engine = Engine(
                self.budget, segment, name, PAGES, CAPACITY * PAGE, careful=True, driver=driver
            )
        except DriverError:
            assert (driver.held_bytes(), len(self.budget.rows())) == (0, before)
            return None
        finally:
            Path(segment.path).unlink()
        return engine


PLACE: list[Place] = []


class FaultMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        if not PLACE:
            PLACE.append(Place())
        self.place = PLACE[0]
        if self.place.budget.rows():  # of an example that failed
            self.place.renew()
        self.alive: dict[str, Engine] = {}
        self.closed: list[Engine] = []
        for name in NAMES:
            self.restart(name, "none", 1)

    def free_pages(self) -> int:
        return (CAPACITY * PAGE - sum(row.lease for row in self.place.budget.rows())) // PAGE

    def end(self, name: str) -> None:
        """Closes an engine, whatever its driver does then."""
        engine = self.alive.pop(name)
        engine.close()
        held = engine.driver.held_bytes()
        rows = [row for row in self.place.budget.rows() if row.instance == engine.name]
        assert [(row.lease, row.created) for row in rows] == ([(held, held)] if held else [])
        if held:
            self.closed.append(engine)

    def arm(self, who: str, fault: Fault | None) -> None:
        if fault is not None:
            kind, n, error = fault
            if n:
                self.alive[who].driver.fail_at(kind, n, error)
            else:
                self.alive[who].driver.fail_always(kind, error)

    # --- life ---

    @rule(who=WHO, count=COUNTS, fault=FAULTS)
    def hand_out(self, who: str, count: int, fault: Fault | None) -> None:
        if (engine := self.alive.get(who)) is None:
            return
        self.arm(who, fault)
        try:
            try:
                engine.hand_out(count)
            except Quarantined:
                raise
            except DriverError:
                engine.driver.reset()
                engine.go_on()
        except Quarantined:
            self.end(who)  # an engine cannot go on without that page

    @rule(who=WHO, share=SHARES, cache=st.booleans(), pages=st.integers(0, PAGES), fault=FAULTS)
    def take_back(
        self, who: str, share: float, cache: bool, pages: int, fault: Fault | None
    ) -> None:
        if engine := self.alive.get(who):
            self.arm(who, fault)
            blocks = list(engine.held)
            engine.take_back(blocks[: int(share * len(blocks) + 0.5)], cache)
            engine.shrink(pages)

    @rule(who=WHO, count=COUNTS, share=SHARES, cache=st.booleans(), fault=FAULTS)
    def come_and_go(
        self, who: str, count: int, share: float, cache: bool, fault: Fault | None
    ) -> None:
        self.hand_out(who, count, None)
        self.take_back(who, share, cache, PAGES, fault)

    @rule(count=COUNTS, fault=FAULTS)
    def compete(self, count: int, fault: Fault | None) -> None:
        for who in NAMES:
            self.hand_out(who, count, fault)

    @rule(who=WHO)
    def hit(self, who: str) -> None:
        engine = self.alive.get(who)
        if engine and engine.cached:
            engine.hit(next(iter(engine.cached)))

    @rule(who=WHO, fault=FAULTS)
    def shrink_for_others(self, who: str, fault: Fault | None) -> None:
        if engine := self.alive.get(who):
            engine.publish()
            engine.quiet()
            self.arm(who, fault)
            engine.shrink_for_others()

    # --- faults that stay ---

    @rule(who=WHO, extra=st.integers(0, 4))
    def run_short(self, who: str, extra: int) -> None:
        if engine := self.alive.get(who):
            engine.driver.quota(engine.driver.held_bytes() + extra * PAGE // 2)

    @rule(who=WHO)
    def heal(self, who: str) -> None:
        if engine := self.alive.get(who):
            engine.driver.reset()

    @rule(who=WHO, fault=FAULTS, really=st.sampled_from([False, False, True]))
    def close(self, who: str, fault: Fault | None, really: bool) -> None:
        if really and who in self.alive:
            self.arm(who, fault)
            self.end(who)

    @precondition(lambda self: len(self.alive) < len(NAMES) and self.free_pages() > 0)
    @rule(fault=st.sampled_from(AT_START), n=st.integers(1, 2))
    def start(self, fault: str, n: int) -> None:
        self.restart(next(name for name in NAMES if name not in self.alive), fault, n)

    def restart(self, name: str, fault: str, n: int) -> None:
        if engine := self.place.start(name, fault, n):
            self.alive[name] = engine

    # --- what must hold ---

    @invariant()
    def nothing_is_lost_or_owned_twice(self) -> None:
        for engine in self.alive.values():
            engine.quiet()
            engine.check()
            engine.check_stamps()
        engines = [*self.alive.values(), *self.closed]
        rows = self.place.budget.rows()
        assert len(rows) == len(engines)
        held = sum(engine.driver.held_bytes() for engine in engines)
        assert sum(row.created for row in rows) == sum(row.lease for row in rows) == held
        assert held <= CAPACITY * PAGE

    def teardown(self) -> None:
        for name in [*self.alive]:
            self.alive[name].driver.reset()
            self.alive[name].close()
            assert self.alive[name].driver.held_bytes() == 0
        if self.closed:
            self.place.renew()
        else:
            assert self.place.budget.rows() == []


TestFaultMachine = pytest.mark.slow(FaultMachine.TestCase)
TestFaultMachine.settings = settings(
    max_examples=scale(ci=500, nightly=10_000),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
