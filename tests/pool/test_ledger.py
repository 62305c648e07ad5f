"""The ledger's edges one by one: what each does, and that an illegal one changes nothing."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from random import Random

import pytest

from kvcached_core.pool import Ledger

PAGE_STATES = ("virtual", "preparing", "owned", "retiring", "quarantined")


def snapshot(ledger: Ledger) -> object:
    """Everything that can be seen of a ledger without changing it."""
    return (
        [ledger.state_of(b) for b in range(ledger.num_blocks)],
        [ledger.page_state(p) for p in range(ledger.num_pages())],
        [ledger.pages(s) for s in PAGE_STATES],
        (ledger.num_free(), ledger.num_cached(), ledger.num_used(), ledger.available()),
        (ledger.empty_pages(), ledger.cached_only_pages(), ledger.used_pages()),
        ledger.free_ids(),
        ledger.victims_for_pages(ledger.num_pages()),
    )


def owning(num_blocks: int, blocks_per_page: int, pages: int) -> Ledger:
    """A ledger that owns the first `pages` pages."""
    ledger = Ledger(num_blocks, blocks_per_page)
    ledger.grown(ledger.plan_growth(pages - 1))
    ledger.check_integrity()
    return ledger


def pop_exactly(ledger: Ledger, ids: list[int]) -> None:
    for block in ids:
        ledger.take(block)


@pytest.fixture
def mixed() -> Iterator[Ledger]:
    """4 blocks a page; page 0: null, used 1, cached 2, free 3; 1: cached; 2: empty; 3: retiring;
    4: preparing; 5: quarantined; 6: virtual, and partial. Checked again after the test."""
    ledger = Ledger(26, 4)
    ledger.grown(ledger.plan_growth(3))
    assert ledger.retire_empty(1) == [3]
    pop_exactly(ledger, [1, 2, 4, 5])
    ledger.push_cached([2, 4, 5])
    assert ledger.plan_growth(2) == [4, 5]
    ledger.quarantine([5])
    ledger.check_integrity()
    yield ledger
    ledger.check_integrity()


# ---- construction


@pytest.mark.parametrize(
    ("num_blocks", "blocks_per_page", "pages"),
    [(16, 4, 4), (17, 4, 5), (1, 1, 1), (5, 1, 5), (8, 8, 1), (3, 100, 1)],
)
def test_at_first_only_the_null_page_is_owned(
    num_blocks: int, blocks_per_page: int, pages: int
) -> None:
    ledger = Ledger(num_blocks, blocks_per_page)
    ledger.check_integrity()
    assert ledger.num_blocks == num_blocks
    assert ledger.blocks_per_page == blocks_per_page
    assert ledger.num_pages() == pages
    assert ledger.pages("owned") == ledger.used_pages() == 1
    assert ledger.pages("virtual") == pages - 1
    assert ledger.state_of(0) == "null"
    assert ledger.num_free() == ledger.available() == min(num_blocks, blocks_per_page) - 1
    assert ledger.num_used() == ledger.num_cached() == 0
    assert ledger.empty_pages() == ledger.cached_only_pages() == 0
    assert ledger.free_ids() == list(range(1, min(num_blocks, blocks_per_page)))


@pytest.mark.parametrize("sizes", [(0, 4), (-1, 4), (8, 0), (8, -2), (2**31, 4), (8, 2**31)])
def test_sizes_are_checked(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"(num_blocks|blocks_per_page) is -?\d+, must be 1 to"):
        Ledger(*sizes)


def test_null_block_is_never_handed_out_freed_or_retired() -> None:
    ledger = owning(8, 4, 2)
    assert 0 not in ledger.pop(7)
    for call in (ledger.push_free, ledger.push_cached):
        with pytest.raises(ValueError, match="block 0 is null"):
            call([0])
    with pytest.raises(ValueError, match="block 0 is null"):
        ledger.take(0)
    ledger.uncache([0])
    assert ledger.state_of(0) == "null"
    ledger.push_free(list(range(1, 8)))
    assert ledger.retire_empty(99) == [1]
    assert ledger.page_state(0) == "owned"
    ledger.check_integrity()


# ---- handing out


def test_pop_fills_the_fullest_page_first() -> None:
    ledger = owning(20, 4, 5)
    pop_exactly(ledger, [1, 2, 3, 4, 8, 9, 12, 13, 14, 16])  # free: 5 6 7, 10 11, 15, 17 18 19
    assert ledger.pop(1) == [15]
    assert ledger.pop(2) == [10, 11]
    assert ledger.pop(4) == [5, 6, 7, 17]  # a tie: the lower page
    ledger.check_integrity()


def test_pop_prefers_a_part_filled_page_to_an_empty_one() -> None:
    ledger = owning(16, 4, 4)
    assert ledger.pop(3) == [1, 2, 3]
    assert ledger.pop(1) == [4]
    ledger.push_free([2])
    assert ledger.pop(2) == [2, 5]
    assert ledger.empty_pages() == 2


def test_pop_spares_pages_that_could_be_given_back() -> None:
    """A page with a used block goes before one that only the cache holds, however full that is."""
    ledger = owning(20, 4, 5)
    pop_exactly(ledger, [1, 2, 3, 4, 8, 9, 10, 12, 13])  # of page 4 none: it is empty
    ledger.push_cached([8, 9, 10, 12])
    # page 1 has one used block; page 2 is cached but for 11; page 3 has a used and a cached one
    assert ledger.pop(2) == [14, 15]
    assert ledger.pop(3) == [5, 6, 7]
    assert ledger.cached_only_pages() == 1
    assert ledger.pop(2) == [11, 16]
    ledger.check_integrity()


def test_a_partial_last_page_counts_by_its_free_blocks() -> None:
    ledger = owning(10, 4, 3)  # page 2 holds 8 and 9
    pop_exactly(ledger, [4, 8])
    assert ledger.pop(4) == [9, 1, 2, 3]  # one free is fewer than three
    assert ledger.pop(3) == [5, 6, 7]
    ledger.push_free([8, 9])
    assert ledger.empty_pages() == 1
    assert ledger.retire_empty(2) == [2]
    assert ledger.num_free() == 0
    ledger.check_integrity()


def test_of_empty_pages_the_lowest_is_used_first() -> None:
    ledger = owning(10, 4, 3)
    assert ledger.pop(3) == [1, 2, 3]
    assert ledger.pop(1) == [4]  # and not of page 2, which has fewer


def test_pages_that_are_wanted_whole_come_whole() -> None:
    """What is asked for together is given back together: its pages are then empty again."""
    ledger = owning(21, 4, 6)
    pop_exactly(ledger, [1, 4, 5])  # holes: 2 3, 6 7
    assert ledger.pop(10) == [8, 9, 10, 11, 12, 13, 14, 15, 2, 3]
    assert ledger.pop(3) == [6, 7, 16]  # no whole page: holes first
    assert ledger.pop(4) == [20, 17, 18, 19]  # page 5 is as whole as it gets
    ledger.push_free([8, 9, 10, 11, 12, 13, 14, 15])
    assert ledger.empty_pages() == 2
    ledger.check_integrity()


def test_pop_takes_cached_blocks_last_and_oldest_first() -> None:
    ledger = owning(12, 4, 3)
    ids = ledger.pop(11)
    ledger.push_cached([7, 2])
    ledger.push_cached([9])
    ledger.push_free([10])
    assert ledger.free_ids() == [10, 7, 2, 9]
    assert ledger.pop(3) == [10, 7, 2]
    assert ledger.num_cached() == 1
    assert ledger.num_used() == len(ids) - 1
    ledger.check_integrity()


def test_a_hit_renews_a_cached_block() -> None:
    ledger = owning(8, 4, 2)
    ledger.pop(7)
    ledger.push_cached([5, 6, 7])
    ledger.take(5)
    ledger.push_cached([5])
    assert ledger.pop(3) == [6, 7, 5]


def test_free_ids_is_what_pop_gives(mixed: Ledger) -> None:
    expected = mixed.free_ids()
    assert expected == [8, 9, 10, 11, 3, 6, 7, 2, 4, 5]
    assert mixed.pop(mixed.available()) == expected


def test_pop_of_nothing() -> None:
    ledger = Ledger(4, 4)
    assert ledger.pop(0) == []
    assert ledger.take_first_used() == []


def test_what_growth_could_give_is_bounded_by_what_there_is(mixed: Ledger) -> None:
    assert mixed.available() == 10  # page 4 is coming, page 6 is virtual
    owned = mixed.pages("owned")
    assert mixed.obtainable(0, 0) == mixed.obtainable(owned, 0) == 10
    assert mixed.obtainable(0, 1) == mixed.obtainable(owned + 1, 1) == 14
    assert mixed.obtainable(owned + 1, 0) == mixed.obtainable(99, 0) == 14
    assert mixed.obtainable(owned + 2, 1) == mixed.obtainable(99, 1) == 18
    assert mixed.obtainable(99, 99) == 24  # all but the null block and the used one
    with pytest.raises(ValueError, match="coming_pages is -1"):
        mixed.obtainable(0, -1)


def test_more_than_is_available_is_refused_by_numbers(mixed: Ledger) -> None:
    before = snapshot(mixed)
    with pytest.raises(ValueError, match=r"11 blocks asked for, 10 available \(7 free, 3 cached\)"):
        mixed.pop(11)
    with pytest.raises(ValueError, match="n is -1"):
        mixed.pop(-1)
    assert snapshot(mixed) == before


def test_one_block_a_page() -> None:
    ledger = owning(5, 1, 4)
    assert ledger.num_free() == 3
    assert ledger.pop(2) == [1, 2]
    ledger.push_cached([2, 1])
    assert ledger.cached_only_pages() == 2
    assert ledger.victims_for_pages(1) == [2]
    assert ledger.retire_empty(9) == [3]
    assert ledger.pop(2) == [2, 1]
    ledger.check_integrity()


def test_one_page_for_all() -> None:
    ledger = Ledger(200, 200)
    assert ledger.pop(199) == list(range(1, 200))
    ledger.push_cached(list(range(1, 200)))
    assert ledger.cached_only_pages() == ledger.empty_pages() == 0
    assert ledger.victims_for_pages(5) == ledger.retire_empty(5) == ledger.plan_growth(5) == []
    ledger.reset_cached()
    assert ledger.num_free() == 199
    ledger.check_integrity()


def test_many_pages_reach_the_upper_levels_of_the_sets() -> None:
    """70,000 pages: three levels of 64. The ends and the middle are told apart."""
    ledger = owning(140_000, 2, 70_000)
    assert ledger.retire_empty(2) == [69_999, 69_998]
    ledger.released([69_999, 69_998])
    assert ledger.plan_growth(1) == [69_998]
    pop_exactly(ledger, [1, 139_995, 70_001])
    assert ledger.pop(1) + ledger.pop(1) + ledger.pop(1) == [70_000, 139_994, 2]
    ledger.check_integrity()


def test_many_pages_in_random_use() -> None:
    """One block a page, so that the best fit is the lowest free id: against a sorted list."""
    ledger = owning(5000, 1, 5000)
    random = Random(7)
    free = set(range(1, 5000))
    for _ in range(20):
        taken = random.sample(sorted(free), random.randrange(len(free)))
        pop_exactly(ledger, taken)
        free -= set(taken)
        popped = ledger.pop(random.randrange(len(free) + 1))
        assert popped == sorted(free)[: len(popped)]
        free -= set(popped)
        assert ledger.free_ids() == sorted(free)
        ledger.check_integrity()
        used = sorted(set(range(1, 5000)) - free)
        back = random.sample(used, random.randrange(len(used) + 1))
        ledger.push_free(back)
        free |= set(back)
    assert ledger.retire_empty(3) == sorted(free)[:-4:-1]
    ledger.check_integrity()


# ---- giving back


def test_push_free_and_push_cached() -> None:
    ledger = owning(8, 4, 2)
    ledger.pop(7)
    assert ledger.empty_pages() == 0
    ledger.push_free([4, 6])
    ledger.push_cached([7, 5])
    assert [ledger.state_of(b) for b in (4, 5, 6, 7)] == ["free", "cached", "free", "cached"]
    assert (ledger.num_free(), ledger.num_cached(), ledger.num_used()) == (2, 2, 3)
    assert ledger.cached_only_pages() == 1
    ledger.uncache([5, 7])
    assert ledger.empty_pages() == 1
    ledger.check_integrity()


def test_uncache_leaves_other_states_alone(mixed: Ledger) -> None:
    mixed.uncache([1, 3, 0, 2, 2, 24])
    assert [mixed.state_of(b) for b in (1, 3, 0, 2, 24)] == ["used", "free", "null", "free", "free"]
    assert mixed.num_cached() == 2
    assert mixed.pop(2) == [2, 3]
    mixed.uncache({4, 5})
    assert mixed.num_cached() == 0
    assert mixed.empty_pages() == 2


def test_reset_cached(mixed: Ledger) -> None:
    mixed.reset_cached()
    assert (mixed.num_cached(), mixed.num_free(), mixed.num_used()) == (0, 10, 1)
    assert mixed.cached_only_pages() == 0
    assert mixed.empty_pages() == 2
    assert mixed.state_of(2) == "free"


def test_ids_in_arrays_of_int32() -> None:
    ledger = owning(8, 4, 2)
    out = array("i", bytes(4 * 5))
    ledger.pop_into(out)
    assert list(out) == [4, 5, 6, 7, 1]
    ledger.push_free(out[:2])
    ledger.push_cached(memoryview(out)[2:])
    assert ledger.free_ids() == [2, 3, 4, 5, 6, 7, 1]
    ledger.pop(7)
    ledger.push_free(array("q", [1, 2]))  # another type is read item by item
    ledger.push_free(memoryview(array("i", [3, 0, 4, 0]))[::2])
    assert ledger.num_free() == 4
    ledger.check_integrity()


def test_arrays_that_do_not_fit_change_nothing() -> None:
    ledger = owning(8, 4, 2)
    pop_exactly(ledger, [1, 2, 3, 4])
    before = snapshot(ledger)
    for out in ([0], array("q", [0]), memoryview(array("i", [0])).toreadonly(), b"1234"):
        with pytest.raises(TypeError, match="writable array of int32"):
            ledger.pop_into(out)
    with pytest.raises(ValueError, match="4 blocks asked for, 3 available"):
        ledger.pop_into(array("i", [0, 0, 0, 0]))
    with pytest.raises(ValueError, match="block 5 is free"):
        ledger.push_free(array("i", [1, 5]))
    assert snapshot(ledger) == before


def test_ids_come_from_any_iterable_of_integers() -> None:
    ledger = owning(8, 4, 2)
    ledger.pop(7)
    ledger.push_free((1, 2))
    ledger.push_cached(range(3, 5))
    ledger.push_free({5})
    ledger.push_free(b for b in (6, 7))
    assert ledger.num_used() == 0
    with pytest.raises(TypeError):
        ledger.push_free(3)
    with pytest.raises(TypeError):
        ledger.push_free([1.0])
    with pytest.raises(ValueError, match="4294967297 is not a 32-bit integer"):
        ledger.push_free([2**32 + 1])


# ---- edges that are not allowed

ILLEGAL_EDGES: list[tuple[str, Callable[[Ledger], object], str]] = [
    ("double free", lambda x: x.push_free([1, 3]), "block 3 is free"),
    (
        "free named twice",
        lambda x: x.push_free([1, 1]),
        "push_free: block 1 is free",
    ),
    ("free a cached", lambda x: x.push_free([1, 2]), "block 2 is cached"),
    ("free a virtual", lambda x: x.push_free([1, 24]), "block 24 is free"),
    ("free unknown", lambda x: x.push_free([1, 26]), "no block 26, blocks are 0 to 25"),
    ("free negative", lambda x: x.push_free([1, -1]), "no block -1"),
    ("cache a cached", lambda x: x.push_cached([1, 2]), "push_cached: block 2 is cached"),
    ("cache a free", lambda x: x.push_cached([1, 3]), "block 3 is free"),
    ("cache named twice", lambda x: x.push_cached([1, 1]), "block 1 is cached"),
    ("cache null", lambda x: x.push_cached([1, 0]), "block 0 is null"),
    ("take a used", lambda x: x.take(1), "take: block 1 is used"),
    ("take a retiring", lambda x: x.take(12), "page 3, which is retiring"),
    ("take a preparing", lambda x: x.take(16), "page 4, which is preparing"),
    ("take a quarantined", lambda x: x.take(20), "page 5, which is quarantined"),
    ("take a virtual", lambda x: x.take(24), "page 6, which is virtual"),
    ("take unknown", lambda x: x.take(99), "no block 99"),
    ("uncache unknown", lambda x: x.uncache([2, 99]), "uncache: there is no block 99"),
    ("grow a virtual", lambda x: x.grown([4, 6]), "page 6 is virtual, must be preparing"),
    ("grow an owned", lambda x: x.grown([4, 2]), "page 2 is owned"),
    ("grow a retiring", lambda x: x.grown([4, 3]), "page 3 is retiring"),
    ("grow a quarantined", lambda x: x.grown([4, 5]), "page 5 is quarantined"),
    ("grow twice", lambda x: x.grown([4, 4]), "page 4 is named twice"),
    ("grow unknown", lambda x: x.grown([4, 7]), "no page 7, pages are 0 to 6"),
    ("fail an owned", lambda x: x.growth_failed([4, 2]), "growth_failed: page 2 is owned"),
    ("fail a retiring", lambda x: x.growth_failed([4, 3]), "page 3 is retiring"),
    ("keep an owned", lambda x: x.kept([3, 2]), "kept: page 2 is owned, must be retiring"),
    ("keep a virtual", lambda x: x.kept([3, 6]), "page 6 is virtual"),
    ("release an owned", lambda x: x.released([3, 2]), "released: page 2 is owned, must be retir"),
    ("release the null page", lambda x: x.released([3, 0]), "page 0 is owned"),
    ("release a preparing", lambda x: x.released([3, 4]), "page 4 is preparing"),
    ("release a virtual", lambda x: x.released([3, 6]), "page 6 is virtual"),
    ("release twice", lambda x: x.released([3, 3]), "page 3 is named twice"),
    ("release a quarantined", lambda x: x.released([3, 5]), "page 5 is quarantined"),
    ("quarantine an owned", lambda x: x.quarantine([3, 4, 2]), "must be preparing or retiring"),
    ("quarantine a virtual", lambda x: x.quarantine([3, 4, 6]), "page 6 is virtual"),
    ("quarantine again", lambda x: x.quarantine([3, 4, 5]), "page 5 is quarantined"),
    ("negative growth", lambda x: x.plan_growth(-1), "plan_growth: max_pages is -1"),
    ("negative shrinking", lambda x: x.retire_empty(-1), "retire_empty: max_pages is -1"),
    ("negative victims", lambda x: x.victims_for_pages(-1), "n_pages is -1, must be >= 0"),
    ("negative bound", lambda x: x.victims_over_bound(-2), "max_pages is -2, must be >= 0"),
    ("bound below nothing", lambda x: x.is_over_bound(-1), "is_over_bound: max_pages is -1"),
    ("state of unknown", lambda x: x.state_of(26), "state_of: there is no block 26"),
    ("page of unknown", lambda x: x.block_page(-1), "block_page: there is no block -1"),
    ("pages of unknown", lambda x: x.pages_of([1, 26]), "pages_of: there is no block 26"),
    ("page state unknown", lambda x: x.page_state(7), "page_state: there is no page 7"),
    ("no such state", lambda x: x.pages("used"), "no page state 'used', states are virtual, prep"),
]


@pytest.mark.parametrize(
    ("call", "message"), [e[1:] for e in ILLEGAL_EDGES], ids=[e[0] for e in ILLEGAL_EDGES]
)
def test_an_illegal_edge_is_named_and_changes_nothing(
    mixed: Ledger, call: Callable[[Ledger], object], message: str
) -> None:
    before = snapshot(mixed)
    with pytest.raises(ValueError, match=message):
        call(mixed)
    assert snapshot(mixed) == before
    mixed.check_integrity()
    assert mixed.take_first_used() == [0, 1]


# ---- growth and shrinking


def test_growth_takes_the_lowest_virtual_pages() -> None:
    ledger = Ledger(20, 4)
    assert ledger.plan_growth(2) == [1, 2]
    assert ledger.pages("preparing") == 2
    assert ledger.available() == 3  # a page in preparation is not handed out
    ledger.growth_failed([1])
    ledger.grown([2])
    assert ledger.available() == 7
    assert ledger.plan_growth(99) == [1, 3, 4]
    assert ledger.plan_growth(1) == []
    assert ledger.pages("virtual") == 0
    ledger.check_integrity()


def test_retirement_takes_the_highest_empty_pages() -> None:
    ledger = owning(24, 4, 6)
    pop_exactly(ledger, [1, 17])
    assert ledger.empty_pages() == 4
    assert ledger.retire_empty(2) == [5, 3]
    assert ledger.num_free() == 2 + 3 + 8
    assert set(ledger.free_ids()).isdisjoint(range(12, 16))
    ledger.released([3])
    assert ledger.page_state(3) == "virtual"
    assert ledger.plan_growth(1) == [3]
    assert ledger.retire_empty(99) == [2, 1]
    assert ledger.retire_empty(99) == []
    ledger.check_integrity()


def test_quarantine_is_for_good() -> None:
    ledger = owning(16, 4, 2)
    assert ledger.retire_empty(1) == [1]
    assert ledger.plan_growth(1) == [2]
    ledger.quarantine([2, 1])
    assert ledger.pages("quarantined") == 2
    assert ledger.plan_growth(9) == [3]
    ledger.grown([3])
    assert set(ledger.pop(ledger.available())).isdisjoint(range(4, 12))
    ledger.check_integrity()


def test_page_counts_tell_used_cached_and_empty_apart(mixed: Ledger) -> None:
    assert [mixed.pages(s) for s in PAGE_STATES] == [1, 1, 3, 1, 1]
    assert (mixed.used_pages(), mixed.cached_only_pages(), mixed.empty_pages()) == (2, 1, 1)
    assert [mixed.page_state(p) for p in range(7)] == [
        *["owned"] * 3,
        "retiring",
        "preparing",
        "quarantined",
        "virtual",
    ]
    assert mixed.block_page(11) == 2
    assert mixed.pages_of([25, 1, 4, 2, 5, 4, 24]) == [0, 1, 6]


# ---- cached victims


def test_victims_come_from_the_page_that_empties_soonest() -> None:
    ledger = owning(20, 4, 5)
    pop_exactly(ledger, [1, 2, 4, 5, 6, 8, 9, 12, 13, 16, 17])
    ledger.push_cached([2, 12, 4, 5, 6, 8, 13, 9, 16])  # 1 and 17 stay in use
    ledger.push_free([])
    before = snapshot(ledger)
    assert ledger.cached_only_pages() == 3
    assert ledger.victims_for_pages(0) == []
    assert ledger.victims_for_pages(1) == [12, 13]  # two blocks, as page 2, but used less lately
    assert ledger.victims_for_pages(2) == [12, 13, 8, 9]
    assert ledger.victims_for_pages(99) == [12, 13, 8, 9, 4, 5, 6]
    assert ledger.victims_over_bound(3) == ledger.victims_over_bound(9) == []
    assert ledger.victims_over_bound(1) == [12, 13, 8, 9]
    assert [ledger.is_over_bound(n) for n in (1, 2, 3)] == [True, True, False]
    assert snapshot(ledger) == before
    ledger.uncache(ledger.victims_over_bound(1))
    assert ledger.cached_only_pages() == 1
    assert ledger.empty_pages() == 2
    assert ledger.retire_empty(9) == [3, 2]
    ledger.check_integrity()


def test_a_bound_of_nothing_keeps_no_unreferenced_block() -> None:
    ledger = owning(8, 4, 2)
    pop_exactly(ledger, [1, 4, 5, 6])
    assert not ledger.is_over_bound(0)
    ledger.push_cached([5, 1])  # both beside what can never be given back: page 0, and 4 and 6
    assert ledger.cached_only_pages() == 0
    assert ledger.is_over_bound(0) and not ledger.is_over_bound(1)
    assert ledger.victims_over_bound(0) == [5, 1]
    assert ledger.victims_over_bound(1) == []


def test_a_page_with_a_used_block_is_no_victim() -> None:
    ledger = owning(16, 4, 4)
    pop_exactly(ledger, [4, 5, 8, 9, 10])
    ledger.push_cached([5, 8, 9, 10])  # page 1 has fewer to lose, but 4 would keep it
    assert ledger.victims_for_pages(9) == [8, 9, 10]


def test_a_page_is_as_recent_as_its_latest_block() -> None:
    ledger = owning(12, 4, 3)
    pop_exactly(ledger, [4, 5, 8, 9])
    ledger.push_cached([8, 4, 5, 9])  # page 2 holds both the oldest and the latest
    assert ledger.victims_for_pages(1) == [4, 5]


def test_a_hit_makes_a_page_younger() -> None:
    ledger = owning(16, 4, 4)
    pop_exactly(ledger, [4, 8])
    ledger.push_cached([4, 8])
    assert ledger.victims_for_pages(1) == [4]
    ledger.take(4)
    assert ledger.victims_for_pages(9) == [8]
    ledger.push_cached([4])
    assert ledger.victims_for_pages(1) == [8]


# ---- first use


def test_first_use_is_told_once_an_ownership() -> None:
    ledger = owning(16, 4, 3)
    assert ledger.take_first_used() == []
    pop_exactly(ledger, [1, 2, 3, 4, 9])
    assert ledger.take_first_used() == [0, 1, 2]
    ledger.push_free([9])
    ledger.pop(6)
    assert ledger.take_first_used() == []
    ledger.push_free([8, 9, 10, 11])
    assert ledger.retire_empty(1) == [2]
    ledger.released([2])
    ledger.grown(ledger.plan_growth(1))
    assert ledger.take_first_used() == []
    ledger.take(8)
    assert ledger.take_first_used() == [2]


def test_a_page_that_retires_before_it_is_told_is_not() -> None:
    ledger = owning(8, 4, 2)
    ledger.take(5)
    ledger.push_free([5])
    assert ledger.retire_empty(1) == [1]
    assert ledger.take_first_used() == []


def test_a_cached_block_that_is_handed_out_again_is_no_first_use() -> None:
    ledger = owning(4, 2, 2)
    pop_exactly(ledger, [1, 2, 3])
    ledger.push_cached([1, 2, 3])
    assert ledger.take_first_used() == [0, 1]
    assert ledger.pop(3) == [1, 2, 3]
    assert ledger.take_first_used() == []
