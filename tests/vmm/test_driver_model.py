"""Random calls, right and wrong, against a model of the contract."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcached_core.vmm import Handle, InvalidArgument

from .subject import SUBJECTS

SLOTS = 12  # granules of the one reserved range


class DriverModel(RuleBasedStateMachine):
    """Handles are known by index in the order of their creation, for ever."""

    kind = "host-page"

    def __init__(self) -> None:
        super().__init__()
        self.subject = SUBJECTS[self.kind]()
        self.driver = self.subject.driver
        self.granule = self.subject.granule
        self.base = self.driver.reserve(SLOTS * self.granule)
        self.handles: list[Handle] = []
        self.content: dict[int, int] = {}  # alive: the byte that fills it
        self.where: dict[int, int] = {}  # mapped: its first slot
        self.open: set[int] = set()

    def at(self, slot: int) -> int:
        return self.base + slot * self.granule

    def slots(self, index: int) -> range:
        start = self.where[index]
        return range(start, start + self.handles[index].size // self.granule)

    def taken(self) -> set[int]:
        return {slot for index in self.where for slot in self.slots(index)}

    def attempt(self, allowed: bool, call: object, *args: object) -> bool:
        try:
            call(*args)  # type: ignore[operator]
        except InvalidArgument:
            assert not allowed
        else:
            assert allowed
        return allowed

    @rule(granules=st.integers(1, 4))
    def create(self, granules: int) -> None:
        self.content[len(self.handles)] = 0
        self.handles.append(self.driver.create(granules * self.granule))

    @rule(pick=st.integers(0, 30))
    def release(self, pick: int) -> None:
        if not self.handles:
            return
        index = pick % len(self.handles)
        allowed = index in self.content and index not in self.where
        if self.attempt(allowed, self.driver.release, self.handles[index]):
            del self.content[index]

    @rule(pick=st.integers(0, 30), slot=st.integers(0, SLOTS))
    def map(self, pick: int, slot: int) -> None:
        if not self.handles:
            return
        index = pick % len(self.handles)
        handle = self.handles[index]
        wanted = set(range(slot, slot + handle.size // self.granule))
        allowed = (
            index in self.content
            and index not in self.where
            and max(wanted) < SLOTS
            and not wanted & self.taken()
        )
        if self.attempt(allowed, self.driver.map, self.at(slot), handle):
            self.where[index] = slot

    @rule(slot=st.integers(0, SLOTS), granules=st.integers(1, 4), value=st.integers(1, 255))
    def set_access_and_write(self, slot: int, granules: int, value: int) -> None:
        run: list[int] = []
        edge = slot
        while edge < slot + granules:
            index = next((i for i, start in self.where.items() if start == edge), None)
            if index is None:
                break
            run.append(index)
            edge = self.slots(index).stop
        allowed = edge == slot + granules
        size = granules * self.granule
        if self.attempt(allowed, self.driver.set_access, self.at(slot), size):
            self.open.update(run)
            self.subject.write(self.at(slot), bytes([value]) * size)
            self.content.update(dict.fromkeys(run, value))

    @rule(slot=st.integers(0, SLOTS), granules=st.integers(1, 4))
    def unmap(self, slot: int, granules: int) -> None:
        index = next((i for i, start in self.where.items() if start == slot), None)
        allowed = index is not None and len(self.slots(index)) == granules
        if self.attempt(allowed, self.driver.unmap, self.at(slot), granules * self.granule):
            assert index is not None
            del self.where[index]
            self.open.discard(index)

    @invariant()
    def memory_is_as_the_model_says(self) -> None:
        held = sum(self.handles[index].size for index in self.content)
        assert self.driver.held_bytes() == held
        readable = sum(self.handles[index].size for index in self.open)
        assert self.subject.readable(self.base, SLOTS * self.granule) == readable
        for index in self.open:
            size = self.handles[index].size
            found = self.subject.read(self.at(self.where[index]), size)
            assert found == bytes([self.content[index]]) * size


class FaultyDriverModel(DriverModel):
    """The wrapper without faults."""

    kind = "faulty-page"


class CudaDriverModel(DriverModel):
    kind = "cuda-64KiB"


class HipDriverModel(DriverModel):
    kind = "hip-64KiB"


TestDriverModel = DriverModel.TestCase
TestDriverModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFaultyDriverModel = FaultyDriverModel.TestCase
TestFaultyDriverModel.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestCudaDriverModel = CudaDriverModel.TestCase
TestCudaDriverModel.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestHipDriverModel = HipDriverModel.TestCase
TestHipDriverModel.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
