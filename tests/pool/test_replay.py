"""Replay: what a log's calls do to a pool of another shape, and what is measured of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcached_core.pool import GrowthPolicy
from kvcached_core.pool.allocation_log import LogError, Record, parse_handles, read_records
from kvcached_core.pool.replay import PoolTooSmall, Replay, Totals
from support.multi_turn import Load, MultiTurn


def play(text: str, num_blocks: int = 32, per_page: int = 4, **more: Any) -> tuple[Replay, Totals]:
    """Plays records written apart by semicolons, without a reserve."""
    replay = Replay(num_blocks, per_page, GrowthPolicy(more.pop("reserve", 0)), **more)
    totals = replay.run(read_records([f"{part.strip()}\n" for part in text.split(";")]))
    replay.ledger.check_integrity()
    return replay, totals


def test_the_measures_of_a_small_log_by_hand() -> None:
    # 11 blocks and the null block fill 3 pages; then 4 are left, on the first page and the last.
    _, totals = play("p 11; s 0; f 3-9; s 100; f 0-2 10; s 300; s 400")
    pages = [(s.mapped_pages, s.packed_pages) for s in totals.samples]
    assert pages == [(3, 3), (3, 2), (1, 1), (1, 1)]
    assert totals.milliseconds == 400
    assert totals.mean_mapped_pages == (3 * 100 + 3 * 200 + 1 * 100) / 400
    assert totals.mean_packed_pages == (3 * 100 + 2 * 200 + 1 * 100) / 400
    assert totals.mean_ratio == (1 * 100 + 1.5 * 200 + 1 * 100) / 400
    assert totals.ratio_of_means == 10 / 8
    assert (totals.peak_mapped_pages, totals.peak_packed_pages) == (3, 3)
    assert totals.peak_ratio == 3.0 and totals.peak_excess_pages == 2  # before pages went back
    assert (totals.grown_pages, totals.retired_pages, totals.stalls) == (2, 2, 1)


def test_hits_are_hits_while_the_pool_holds_them() -> None:
    replay, totals = play("p 7; c 6-0; s 1; t 0-6; c 6-0; s 2; i 3")
    assert (totals.hit_blocks, totals.missed_blocks, totals.evicted_blocks) == (7, 0, 0)
    assert replay.ledger.num_cached() == 7


def test_a_hit_of_what_was_evicted_takes_a_fresh_block_and_keeps_its_name() -> None:
    # Room for 7 blocks: the second pop evicts 3 and 2, the least recently used ones.
    replay, totals = play("p 4; c 3-0; s 1; p 5; s 2; f 4-8; t 0-3; c 3-0; t 0; s 3", num_blocks=8)
    assert totals.evicted_blocks == 2
    assert (totals.hit_blocks, totals.missed_blocks) == (3, 2)
    assert (replay.ledger.num_used(), replay.ledger.num_cached()) == (1, 3)


def test_a_bound_evicts_at_the_end_of_a_pass() -> None:
    _, totals = play("p 15; c 14-0; s 1; t 0-14; f 0-14; s 2", bound_pages=1)
    assert totals.evicted_blocks == 8  # two pages of four; page 0 counts as in use
    assert totals.missed_blocks == 8
    _, totals = play("p 15; c 14-0; s 1; t 0-14; f 0-14; s 2", bound_pages=0)
    assert totals.missed_blocks == 15


def test_uncache_and_reset_forget_what_they_name() -> None:
    replay, totals = play("p 6; c 5-2; u 2 0 3; s 1; t 3-5; r; c 4; s 2; r; t 4; s 3")
    assert totals.hit_blocks == 2 and totals.missed_blocks == 2
    assert replay.ledger.num_cached() == 0


def test_a_reserve_saves_the_stall_of_the_next_burst() -> None:
    log = "p 16; s 1; p 16; s 2; p 16; s 3"
    assert play(log, 200, reserve=0)[1].stalls == 3
    assert play(log, 200, reserve=1)[1].stalls == 1


def test_a_limit_bounds_what_is_mapped() -> None:
    log = "p 8; c 7-0; s 1; p 12; s 2"
    _, totals = play(log, limit_pages=4)
    assert totals.peak_mapped_pages == 4 and totals.evicted_blocks == 5
    _, totals = play(log)
    assert totals.peak_mapped_pages == 6 and totals.evicted_blocks == 0


def test_a_pool_that_is_too_small_is_told_by_numbers() -> None:
    with pytest.raises(PoolTooSmall, match=r"record 2: 5 blocks are asked for, 1 are left of 8"):
        play("p 6; p 5", num_blocks=8)


@pytest.mark.parametrize("text", ["c 0", "p 2; f 5", "p 1; f 0; f 0", "p 1; t 0", "s 5; s 1"])
def test_a_log_that_contradicts_itself_is_refused(text: str) -> None:
    with pytest.raises(LogError, match=r"record \d \(\w\)"):
        play(text)


# ---- the multi-turn load

SMALL = Load(seconds=90.0, arrivals_per_second=1.0, wave_seconds=30.0, think_seconds=8.0)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return list(MultiTurn(SMALL))


def test_the_load_follows_from_its_seed(records: list[Record]) -> None:
    assert list(MultiTurn(SMALL)) == records
    assert list(MultiTurn(replace(SMALL, seed=1))) != records


def test_the_load_has_turns_that_reuse_and_prompts_that_are_shared(records: list[Record]) -> None:
    replay = Replay(8192, 16, GrowthPolicy(2))
    totals = replay.run(records)
    assert totals.missed_blocks == 0
    assert totals.hit_blocks > totals.popped_blocks / 4
    assert replay.ledger.num_used() < totals.popped_blocks / 2  # conversations leave, too


# Beyond the floor there are the reserve and holes; so the bound is one for pools of thousands of
# blocks. Where no prefix is kept at all, pages of 32 blocks go beyond it (docs/benchmarks.md).
@pytest.mark.parametrize("per_page", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("bound_blocks", [None, 512])
def test_mapped_memory_stays_near_the_packed_floor(
    records: list[Record], per_page: int, bound_blocks: int | None
) -> None:
    bound = None if bound_blocks is None else bound_blocks // per_page
    replay = Replay(4096, per_page, GrowthPolicy(2), bound)
    totals = replay.run(records)
    replay.ledger.check_integrity()
    assert totals.mean_packed_pages * per_page > 1500, "a pool so small proves nothing"
    assert totals.evicted_blocks > 2000, "no pressure proves nothing either"
    assert totals.ratio_of_means <= totals.mean_ratio <= 1.15


@pytest.mark.parametrize("bound", [0, 1, 8])
def test_a_bound_holds_once_nothing_runs(bound: int) -> None:
    replay = Replay(4096, 16, GrowthPolicy(2), bound)
    records = MultiTurn(replace(SMALL, arrivals_per_second=0.05))
    idle = 0
    for record in records:
        replay.apply(record)
        if record.kind == "i":
            idle += 1
            assert replay.ledger.num_used() == 0
            assert replay.ledger.cached_only_pages() <= bound
            assert replay.ledger.empty_pages() <= 2
    assert idle > 3


def test_handles_of_the_load_are_named_after_they_were_popped(records: list[Record]) -> None:
    popped = 0
    for record in records:
        if record.kind == "p":
            popped += int(record.number)
        assert all(handle < popped for handle in record.handles)
    assert popped > 2000
    assert parse_handles("0-1") == [0, 1]
