"""Pools of sliding windows and of full attention on one memory, stepped by hand (window_rig.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("sglang_variables")]

PAGE = 64 << 10
WINDOWS_PAGE, FULL_PAGE = 64, 128
PADDING = 2 * PAGE
SHARE = 4  # pages of windows for one request of the greatest length

Make = Callable[..., Any]


@pytest.fixture(params=["swa_kv_pool", "full_kv_pool"])
def make(request: pytest.FixtureRequest, rigs: Callable[..., Any]) -> Make:
    """By which pool is made first."""
    from engine_sglang.window_rig import WindowRig

    return partial(rigs, WindowRig, first=request.param)


def request(prompt: int, answer: int) -> Any:
    from engine_sglang.rig import request

    return request(prompt, answer)


def test_it_starts_with_the_page_of_padding_of_either(make: Make) -> None:
    rig = make()
    assert rig.mapped() == PADDING and rig.owned() == [1, 1]
    assert rig.allocator.swa_available_size() == WINDOWS_PAGE - 1
    assert rig.allocator.full_available_size() == FULL_PAGE - 1
    assert rig.missing() == (0, 0)
    rig.pool.full_kv_pool.k_buffer[0][0] = 1.0
    rig.pool.swa_kv_pool.v_buffer[1][0] = 1.0


def test_tensors_lie_apart(make: Make) -> None:
    rig = make()
    rig.step([request(190, 5)])
    taken = rig.take(190)
    windows = rig.windows_of(taken)
    full, short = rig.pool.full_kv_pool, rig.pool.swa_kv_pool
    tensors = [full.k_buffer[0], full.v_buffer[0]]
    for number, tensor in enumerate(tensors):
        tensor[taken] = float(number)
    for number, tensor in enumerate([*short.k_buffer, *short.v_buffer], 2):
        tensor[windows] = float(number)
    assert all((tensor[taken] == n).all() for n, tensor in enumerate(tensors))
    others = [*short.k_buffer, *short.v_buffer]
    assert all((tensor[windows] == n).all() for n, tensor in enumerate(others, 2))


def test_slots_of_windows_that_are_freed_give_their_pages_back(make: Make) -> None:
    rig = make(reserve_pages=0)
    rig.step([request(390, 5)])
    taken = rig.take(390)
    rig.write(taken)
    windows, full = rig.owned()
    assert windows >= 6 and full >= 3
    rig.allocator.free_swa(taken[:330])
    assert not rig.windows_of(taken[:330]).any()
    rig.running.reqs = [request(390, 5)]
    rig.step(steps=6)
    rig.backend._memory.drain()
    rig.step()
    assert rig.owned()[0] == SHARE  # since full attention has outgrown its own
    assert rig.owned()[1] >= full
    rig.write(taken[330:])
    rig.allocator.free(taken)
    rig.running.reqs = []
    rig.rest()
    assert rig.mapped() == PADDING
    assert rig.missing() == (0, 0)


def test_slots_of_windows_count_by_themselves(make: Make) -> None:
    rig = make()
    rig.step([request(390, 5)])
    taken = rig.take(390)
    assert rig.missing() == (390, 390)
    rig.allocator.free_swa(taken[:300])
    assert rig.missing() == (390, 90)
    rig.allocator.free(taken)
    assert rig.missing() == (0, 0)


def test_memory_that_comes_into_use_again_is_zero(make: Make) -> None:
    rig = make(reserve_pages=0)
    for _ in range(2):
        rig.step([request(390, 1)])
        taken = rig.take(390)
        windows = rig.windows_of(taken)
        fresh = windows[windows >= WINDOWS_PAGE]
        assert len(fresh) > 300
        assert not rig.pool.swa_kv_pool.k_buffer[1][fresh].any()
        rig.write(taken)
        rig.allocator.free(taken)
        rig.rest()
        assert rig.mapped() == PADDING


def test_a_pool_gets_what_the_other_does_not_need(make: Make) -> None:
    rig = make(limit=10 * PAGE, reserve_pages=0)
    rig.running.reqs = [request(3, 3)]
    held = []
    for _ in range(4):  # of full attention only
        rig.step([request(190, 1)])
        held.append(rig.take(190))
        rig.allocator.free_swa(held[-1])
    assert rig.owned() == [SHARE, 6]
    for slots in held:
        rig.allocator.free(slots)
    for _ in range(50):
        rig.step([request(300, 1)])
        rig.backend._memory.drain()
        if rig.available() >= 300:
            break
    rig.write(rig.take(300))
    assert rig.owned()[0] == SHARE + 1 and rig.mapped() <= 10 * PAGE


def test_one_request_of_any_length_runs_beside_what_is_cached(make: Make) -> None:
    rig = make(limit=7 * PAGE)
    longest = rig.backend.max_request_tokens(199)
    assert longest == 199
    for _ in range(30):
        rig.step([request(20, 4)])
        if rig.available() >= 24:
            rig.cache(rig.take(24))
    for _ in range(40):
        rig.step([request(longest - 20, 20)])
        full = rig.allocator.full_available_size() + rig.tree.full_evictable_size()
        windows = rig.allocator.swa_available_size() + rig.tree.swa_evictable_size()
        if full > longest + 2 and windows > 34:
            break
        rig.backend._memory.drain()
    else:
        raise AssertionError(f"{full} and {windows} slots to be had, pages {rig.owned()}")


def test_it_sleeps_and_wakes(make: Make) -> None:
    rig = make()
    rig.step([request(190, 100)])
    rig.allocator.free(rig.take(190))
    rig.allocator.clear()
    rig.backend.release()
    assert rig.mapped() == PADDING
    assert (rig.available(), rig.missing()) == (0, (0, 0))
    rig.backend.resume()
    rig.step([request(190, 50)])
    rig.write(rig.take(190))


def test_prefixes_are_evicted_down_to_a_bound(make: Make) -> None:
    rig = make(prefix_bound="0B", reserve_pages=0)
    rig.step([request(390, 5)])
    rig.cache(rig.take(200))
    rig.cache(rig.take(150))
    rig.rest()
    assert rig.tree.full_evictable_size() == rig.tree.swa_evictable_size() == 0
    assert rig.mapped() == PADDING


def test_no_more_prefixes_are_kept_than_fit_in_a_bound(make: Make) -> None:
    rig = make(prefix_bound=4 * PAGE)
    rig.step([request(390, 5)])
    rig.running.reqs = [request(3, 3)]
    rig.cache(rig.take(200))
    rig.cache(rig.take(150))  # 525 KiB with the former, 225 by itself
    rig.step()
    assert rig.tree.full_evictable_size() == rig.tree.swa_evictable_size() == 150


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_calls(make: Make, seed: int) -> None:
    draw = random.Random(seed)
    rig = make(limit=draw.randrange(11, 24) * PAGE)
    held: list[Any] = []  # slots, and how many of the first have lost their windows

    def take() -> None:
        size = draw.randrange(1, 120)
        if size <= rig.available():
            held.append([rig.take(size), 0])

    def clear_window() -> None:
        if held:
            one = draw.choice(held)
            end = draw.randint(one[1], len(one[0]))
            rig.allocator.free_swa(one[0][one[1] : end])
            one[1] = end

    def free() -> None:
        if held:
            rig.allocator.free(held.pop(draw.randrange(len(held)))[0])

    def cache() -> None:
        whole = [at for at, one in enumerate(held) if not one[1]]
        if whole:
            rig.cache(held.pop(draw.choice(whole))[0])

    def step() -> None:
        waiting = [request(draw.randrange(1, 150), 20) for _ in range(draw.randrange(3))]
        rig.running.reqs = [request(3, 3)] * len(held)
        rig.step(waiting)

    for _ in range(400):
        draw.choices([take, clear_window, free, cache, step], [3, 2, 2, 1, 5])[0]()
        for slots, lost in held:
            rig.write(slots[lost:])
        full = sum(len(slots) for slots, _ in held)
        windows = full - sum(lost for _, lost in held)
        assert rig.missing() == (full, windows)
        assert rig.mapped() <= rig.backend._memory.room.limit_bytes
    for slots, _ in held:
        rig.allocator.free(slots)
    assert rig.missing() == (0, 0)


def pages(chunk: int | None) -> Any:
    from kvcached_core.engines.sglang.geometry import Geometry
    from kvcached_core.engines.sglang.windows import WindowPages, Windows

    most = None if chunk is None else 200 + 4 * chunk
    return WindowPages(
        Geometry(1, 1024, 64, (1024,), 4096),
        Geometry(1, 4096, 128, (512,), 4096),
        Windows(100, most),
        (0, 1),
    )


@pytest.mark.parametrize("chunk", [8, 512, None])
def test_pages_of_one_request(chunk: int | None) -> None:
    made = pages(chunk)
    assert made.page_bytes == PAGE and made.num_pages == 16 + 32
    held = 3000 if chunk is None else min(3000, 200 + 4 * chunk)
    assert made.pages_of_request(3000) == (min(16, -(-(held + 11) // 64)), 24)
    assert made.pages_of_request(1) == (2, 1)  # a window's worth, and one
    before = 0
    for tokens in range(1, 4000, 7):
        need = sum(made.pages_of_request(tokens))
        assert need >= before
        assert made.tokens_of_request(need) >= tokens > made.tokens_of_request(before)
        before = need if made.tokens_of_request(need) == tokens else before
