"""Random lives of pages that share granules, any call failing, against a model of their bytes.

The model: which pages hold memory, which of them are ready, and the byte that fills each ready
page. Every ready page is in use by declared work, so that any edit of its bytes is an error.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvcached_core.vmm import DriverError

from .strip import PAGES, G, Strip

pages = st.integers(0, PAGES - 1)
# The n-th call from the step's beginning fails, once; 0: none does.
faults = st.tuples(
    st.sampled_from(["any", "create", "map", "set_access", "zero", "unmap", "release"]),
    st.sampled_from([0, 0, 0, 1, 1, 2, 3]),
)


class GranulesModel(RuleBasedStateMachine):
    strip_class = Strip

    @initialize(
        size=st.one_of(
            st.integers(1, 4 * G), st.sampled_from([G // 2, G, 3 * G // 2, 2 * G, 9 * G // 4])
        )
    )
    def begin(self, size: int) -> None:
        self.strip = self.strip_class(size)
        self.held: set[int] = set()
        self.ready: dict[int, int] = {}

    def attempt(self, fault: tuple[str, int], page: int, name: str) -> None:
        """The step, and once more if it fails, which only the first try can."""
        kind, n = fault
        if n:
            self.strip.driver.fail_at(kind, n)
        if not self.succeeds(page, name):
            assert n
            assert self.strip.pages.holds(page) == (page in self.held)
            self.check(leaving={page} if name == "release" else set())
            assert self.succeeds(page, name)
        self.strip.driver.fail_at(kind, 0)

    def succeeds(self, page: int, name: str) -> bool:
        try:
            return getattr(self.strip.pages, name)(page) is not False
        except DriverError as error:
            assert "injected" in str(error)
            return False

    @rule(page=pages, fault=faults)
    def create(self, page: int, fault: tuple[str, int]) -> None:
        if page not in self.held:
            self.attempt(fault, page, "create")
            self.held.add(page)

    @rule(page=pages, fault=faults, value=st.integers(1, 255))
    def map(self, page: int, fault: tuple[str, int], value: int) -> None:
        if page not in self.held:
            return
        self.attempt(fault, page, "map")
        if page not in self.ready:
            assert self.strip.is_filled(page, 0)
            self.strip.driver.begin_work(self.strip.at(page), self.strip.page_bytes)
            self.strip.fill(page, value)
            self.ready[page] = value

    @rule(page=pages, fault=faults)
    def release(self, page: int, fault: tuple[str, int]) -> None:
        if self.ready.pop(page, None) is not None:
            self.strip.driver.end_work(self.strip.at(page), self.strip.page_bytes)
        self.attempt(fault, page, "release")
        self.held.discard(page)

    @rule()
    def end(self) -> None:
        for page in self.ready:
            self.strip.driver.end_work(self.strip.at(page), self.strip.page_bytes)
        assert self.strip.pages.close()
        assert self.strip.inner.held_bytes() == 0 and self.strip.readable() == set()
        self.begin(self.strip.page_bytes)

    @invariant()
    def memory_is_as_the_model_says(self) -> None:
        self.check(leaving=set())

    def check(self, leaving: set[int]) -> None:
        """A page whose release failed may still have all of its granules, or only some."""
        strip = self.strip
        readable, may = strip.readable(), strip.touched(self.held)
        assert len(strip.touched(self.held - leaving)) <= strip.held() <= len(may)
        # What was mapped for a page that left stays as long as a neighbour holds it.
        assert strip.touched(self.ready) <= readable <= may
        assert strip.pages.mapped_bytes == len(readable) * G
        assert all(strip.is_filled(page, value) for page, value in self.ready.items())
        assert strip.driver.violations() == 0


class CudaStrip(Strip):
    kind = "cuda"


class CudaGranulesModel(GranulesModel):
    strip_class = CudaStrip


TestGranulesModel = GranulesModel.TestCase
TestGranulesModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCudaGranulesModel = CudaGranulesModel.TestCase
TestCudaGranulesModel.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
