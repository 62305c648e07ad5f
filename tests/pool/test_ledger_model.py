"""The ledger against the model, call by call, over random histories.

KVCACHED_HYPOTHESIS_EXAMPLES sets the number of histories (200 if it is not set).
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_model import Model

from kvcached_core.pool import Ledger

settings.register_profile(
    "ledger",
    max_examples=int(os.environ.get("KVCACHED_HYPOTHESIS_EXAMPLES", "200")),
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
)

PAGE_STATES = ("virtual", "preparing", "owned", "retiring", "quarantined")
LEGAL_FROM = {
    "grown": {"preparing"},
    "growth_failed": {"preparing"},
    "released": {"retiring"},
    "kept": {"retiring"},
    "quarantine": {"preparing", "retiring"},
}
SHARE = st.integers(0, 8)  # of what there is, in eighths: so that few and all are both common

SEED = st.integers(0, 2**16)  # one draw for an order; st.permutations draws once an item


def shuffled(items: list[int], seed: int) -> list[int]:
    return Random(seed).sample(items, len(items))


class LedgerMachine(RuleBasedStateMachine):
    """Every legal call, with the same arguments and the same answer on both sides."""

    @initialize(num_blocks=st.integers(1, 40), per_page=st.integers(1, 9), grow=SHARE)
    def construct(self, num_blocks: int, per_page: int, grow: int) -> None:
        self.ledger = Ledger(num_blocks, per_page)
        self.model = Model(num_blocks, per_page)
        pages = len(self.model.pages) * grow // 8
        self.grow(pages)
        self.finish_growth(self.model.pages_in("preparing"))

    def grow(self, n: int) -> None:
        assert self.ledger.plan_growth(n) == self.model.plan_growth(n)

    def finish_growth(self, pages: list[int]) -> None:
        self.ledger.grown(pages)
        self.model.move(pages, "owned")

    def some(self, data: st.DataObject, items: list[int]) -> list[int]:
        """A random part of the items, in random order."""
        return shuffled(items, data.draw(SEED))[: len(items) * data.draw(SHARE) // 8]

    # ---- blocks

    @rule(share=SHARE)
    def pop(self, share: int) -> None:
        n = self.ledger.available() * share // 8
        assert self.ledger.pop(n) == self.model.pop(n)

    @rule(n=st.integers(0, 3))
    def pop_few(self, n: int) -> None:
        n = min(n, self.ledger.available())
        assert self.ledger.pop(n) == self.model.pop(n)

    @rule(excess=st.integers(1, 5))
    def pop_too_many(self, excess: int) -> None:
        with pytest.raises(ValueError, match="asked for"):
            self.ledger.pop(self.ledger.available() + excess)

    @rule(data=st.data(), state=st.sampled_from(["free", "cached"]))
    def push(self, data: st.DataObject, state: str) -> None:
        ids = self.some(data, self.model.in_state("used"))
        (self.ledger.push_free if state == "free" else self.ledger.push_cached)(ids)
        self.model.push(ids, state)

    @rule(seed=SEED)
    def drain(self, seed: int) -> None:
        """Every request ends: what makes pages that are merely cached, in any order of use."""
        ids = shuffled(self.model.in_state("used"), seed)
        self.ledger.push_cached(ids)
        self.model.push(ids, "cached")

    @rule(data=st.data(), push=st.sampled_from(["push_free", "push_cached"]))
    def push_with_one_too_many(self, data: st.DataObject, push: str) -> None:
        """Legal up to an id that is not used, or is named twice: all of it is refused."""
        used = self.some(data, self.model.in_state("used"))
        wrong = [b for b, s in self.model.blocks.items() if s != "used"] + used
        with pytest.raises(ValueError, match="can be given back"):
            getattr(self.ledger, push)([*used, data.draw(st.sampled_from(wrong)), *used])

    @precondition(lambda self: self.model.in_state("cached") or self.model.in_state("free"))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        block = data.draw(
            st.sampled_from(self.model.in_state("cached") + self.model.in_state("free"))
        )
        self.ledger.take(block)
        self.model.take(block)

    @rule(data=st.data())
    def take_what_may_not_be(self, data: st.DataObject) -> None:
        legal = self.model.in_state("cached") + self.model.in_state("free")
        with pytest.raises(ValueError, match="take: block"):
            self.ledger.take(
                data.draw(st.sampled_from(sorted(set(self.model.blocks) - set(legal))))
            )

    @rule(data=st.data())
    def uncache(self, data: st.DataObject) -> None:
        ids = self.some(data, list(self.model.blocks))
        self.ledger.uncache(ids)
        self.model.uncache(ids)

    @rule()
    def reset_cached(self) -> None:
        self.ledger.reset_cached()
        self.model.uncache(list(self.model.lru))

    @rule()
    def take_first_used(self) -> None:
        assert self.ledger.take_first_used() == self.model.take_first_used()

    @rule(share=SHARE)
    def evict_for_pages(self, share: int) -> None:
        n = len(self.model.cached_only_pages()) * share // 8
        empty = self.ledger.empty_pages()
        victims = self.ledger.victims_for_pages(n)
        assert victims == self.model.victims(n)
        self.ledger.uncache(victims)
        self.model.uncache(victims)
        assert self.ledger.empty_pages() == empty + n

    # ---- pages

    @rule(n=st.integers(0, 6))
    def plan_growth(self, n: int) -> None:
        self.grow(n)

    @rule(data=st.data())
    def grown(self, data: st.DataObject) -> None:
        self.finish_growth(self.some(data, self.model.pages_in("preparing")))

    @rule(data=st.data())
    def growth_failed(self, data: st.DataObject) -> None:
        pages = self.some(data, self.model.pages_in("preparing"))
        self.ledger.growth_failed(pages)
        self.model.move(pages, "virtual")

    @rule(n=st.integers(0, 6))
    def retire_empty(self, n: int) -> None:
        assert self.ledger.retire_empty(n) == self.model.retire_empty(n)

    @rule(n=st.integers(1, 6))
    def go_idle(self, n: int) -> None:
        """Every block dies after its page's first use was told; some pages go back."""
        self.take_first_used()
        used = self.model.in_state("used")
        self.ledger.push_free(used)
        self.model.push(used, "free")
        self.reset_cached()
        self.retire_empty(n)

    @rule(data=st.data())
    def kept(self, data: st.DataObject) -> None:
        pages = self.some(data, self.model.pages_in("retiring"))
        self.ledger.kept(pages)
        self.model.move(pages, "owned")

    @rule(data=st.data())
    def released(self, data: st.DataObject) -> None:
        pages = self.some(data, self.model.pages_in("retiring"))
        self.ledger.released(pages)
        self.model.move(pages, "virtual")

    @precondition(lambda self: self.model.pages_in("preparing") or self.model.pages_in("retiring"))
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        candidates = self.model.pages_in("preparing") + self.model.pages_in("retiring")
        page = data.draw(st.sampled_from(candidates))  # one: it never comes back
        self.ledger.quarantine([page])
        self.model.move([page], "quarantined")

    @rule(data=st.data(), name=st.sampled_from(sorted(LEGAL_FROM)))
    def move_with_one_too_many(self, data: st.DataObject, name: str) -> None:
        """Legal up to a page in another state, or named twice: all of it is refused."""
        legal = LEGAL_FROM[name]
        pages = self.some(data, [p for p, s in self.model.pages.items() if s in legal])
        wrong = [p for p, s in self.model.pages.items() if s not in legal] + pages
        with pytest.raises(ValueError, match=f"{name}: page"):
            getattr(self.ledger, name)([*pages, data.draw(st.sampled_from(wrong))])

    # ---- after each step

    @invariant()
    def same(self) -> None:
        ledger, model = self.ledger, self.model
        ledger.check_integrity()
        assert {b: ledger.state_of(b) for b in model.blocks} == model.blocks
        assert {p: ledger.page_state(p) for p in model.pages} == model.pages
        assert ledger.num_pages() == len(model.pages)
        for state in PAGE_STATES:
            assert ledger.pages(state) == len(model.pages_in(state))
        assert ledger.num_free() == len(model.in_state("free"))
        assert ledger.num_cached() == len(model.in_state("cached"))
        assert ledger.num_used() == len(model.in_state("used"))
        assert ledger.available() == ledger.num_free() + ledger.num_cached()
        assert ledger.empty_pages() == len(model.empty_pages())
        assert ledger.cached_only_pages() == len(model.cached_only_pages())
        assert ledger.used_pages() + ledger.empty_pages() == ledger.pages("owned")
        assert ledger.free_ids()[ledger.num_free() :] == model.lru
        assert sorted(ledger.free_ids()[: ledger.num_free()]) == model.in_state("free")
        assert ledger.victims_for_pages(len(model.pages)) == model.victims(len(model.pages))
        for bound in (0, 1):
            over = model.victims_over_bound(bound)
            assert ledger.victims_over_bound(bound) == over
            assert ledger.is_over_bound(bound) == bool(over)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings.get_profile("ledger")
