"""Several Budget objects of one process against a model in a few lines of Python."""

import tempfile
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from kvcached_core.budget import Budget, BudgetError, Grant

CAPACITY, HEADROOM = 100, 7
BYTES = st.integers(0, 40)
OBJECTS = 3


Target = MultipleResults[tuple[int, int]] | tuple[int, int]


@dataclass
class Row:
    limit: int
    floor: int
    claim: int
    lease: int = 0
    created: int = 0


class BudgetMachine(RuleBasedStateMachine):
    members: Bundle[tuple[int, int]] = Bundle("members")  # (object, row)

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.budgets = [
            Budget.open(self.directory.name, "host:model", CAPACITY, HEADROOM)
            for _ in range(OBJECTS)
        ]
        self.model: dict[int, Row] = {}
        self.names = 0

    def teardown(self) -> None:
        self.budgets.clear()
        self.directory.cleanup()

    def left(self, row: int) -> int:
        """What the capacity leaves beside the rows, were the lease of `row` to grow."""
        gaps = sum(max(0, r.floor - r.lease) for i, r in self.model.items() if i != row)
        used = sum(r.lease for r in self.model.values())
        return CAPACITY - HEADROOM - used - gaps

    def fits(self, floor: int, without: int = -1) -> bool:
        others = sum(r.floor for i, r in self.model.items() if i != without)
        return others + floor <= CAPACITY - HEADROOM

    @rule(target=members, which=st.integers(0, OBJECTS - 1), limit=BYTES, floor=BYTES, claim=BYTES)
    def join(self, which: int, limit: int, floor: int, claim: int) -> "Target":
        self.names += 1
        if floor > limit or not self.fits(floor):
            with pytest.raises(BudgetError):
                self.budgets[which].join(f"n{self.names}", 0, limit, floor, claim)
            return multiple()
        row = self.budgets[which].join(f"n{self.names}", 0, limit, floor, claim)
        assert row not in self.model
        self.model[row] = Row(limit, floor, claim)
        return (which, row)

    @rule(member=members, size=BYTES, device_free=st.one_of(st.just(1000), st.integers(0, 100)))
    def lease(self, member: tuple[int, int], size: int, device_free: int) -> None:
        which, row = member
        mine = self.model[row]
        created = sum(r.created for r in self.model.values())
        claims = sum(r.claim for r in self.model.values())
        room = min(self.left(row), self.left(row) - CAPACITY + created + device_free - claims)
        expected = max(0, min(room, mine.limit - mine.lease))
        assert self.budgets[which].available(row, device_free) == expected
        granted = self.budgets[which].lease(row, size, device_free, 1000)
        assert granted == (Grant.GRANTED if size <= expected else Grant.REFUSED)
        if granted == Grant.GRANTED:
            mine.lease += size
            if size > 0:  # floors never lent: what the others are sure of is still there
                assert self.left(row) >= 0

    @rule(member=members, size=BYTES)
    def create(self, member: tuple[int, int], size: int) -> None:
        which, row = member
        mine = self.model[row]
        if size > mine.lease - mine.created:
            with pytest.raises(BudgetError):
                self.budgets[which].mark_created(row, size)
            return
        self.budgets[which].mark_created(row, size)
        mine.created += size

    @rule(member=members, size=BYTES)
    def release(self, member: tuple[int, int], size: int) -> None:
        which, row = member
        mine = self.model[row]
        if size > mine.created:
            with pytest.raises(BudgetError):
                self.budgets[which].mark_released(row, size)
            return
        self.budgets[which].mark_released(row, size)
        mine.created -= size
        mine.lease -= size

    @rule(member=members, size=BYTES)
    def unlease(self, member: tuple[int, int], size: int) -> None:
        which, row = member
        mine = self.model[row]
        if size > mine.lease - mine.created:
            with pytest.raises(BudgetError):
                self.budgets[which].unlease(row, size)
            return
        self.budgets[which].unlease(row, size)
        mine.lease -= size

    @rule(member=members, limit=BYTES, floor=BYTES, claim=BYTES)
    def set_terms(self, member: tuple[int, int], limit: int, floor: int, claim: int) -> None:
        which, row = member
        mine = self.model[row]
        if floor > limit:
            with pytest.raises(BudgetError):
                self.budgets[which].set_terms(row, limit, floor, claim, 1000)
            return
        lower = floor <= mine.floor
        granted = self.budgets[which].set_terms(row, limit, floor, claim, 1000)
        if lower or self.fits(floor, without=row):
            assert granted == Grant.GRANTED
            mine.limit, mine.floor, mine.claim = limit, floor, claim
        else:
            assert granted == Grant.REFUSED

    @rule(target=members, member=consumes(members))
    def leave(self, member: tuple[int, int]) -> "Target":
        which, row = member
        if self.model[row].lease:
            with pytest.raises(BudgetError):
                self.budgets[which].leave(row)
            return member
        self.budgets[which].leave(row)
        del self.model[row]
        return multiple()

    @rule(which=st.integers(0, OBJECTS - 1))
    def reap(self, which: int) -> None:
        assert self.budgets[which].reap() == 0  # whoever this process holds lives

    @invariant()
    def every_object_sees_the_model(self) -> None:
        expected = sorted((r.limit, r.floor, r.claim, r.lease, r.created)
                          for r in self.model.values())  # fmt: skip
        for budget in self.budgets:
            rows = budget.rows()
            assert expected == sorted((r.limit, r.floor, r.claim, r.lease, r.created) for r in rows)
            assert sum(r.lease for r in rows) <= CAPACITY - HEADROOM
            assert all(r.created <= r.lease for r in rows)


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
