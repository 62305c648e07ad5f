"""What a step needs, from requests as the scheduler shows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("sglang_variables")]


def request(prompt: int, answer: int, written: int = 0, cached: int = 0) -> Any:
    return SimpleNamespace(
        origin_input_ids=[0] * prompt,
        output_ids=[0] * written,
        prefix_indices=[0] * cached,
        sampling_params=SimpleNamespace(max_new_tokens=answer),
    )


def demand(
    waiting: list[Any], running: list[Any], *, chunked: Any = None, arrived: int = 0, **given: Any
) -> Any:
    from kvcached_core.engines.sglang.demand import Limits, demand_of

    base = {"block_tokens": 1, "chunk": 100, "prefill": 1000, "running": 8, "answer": 4096}
    limits = Limits(**{**base, "expected": 0.5, **given})
    return demand_of(waiting, chunked, SimpleNamespace(reqs=running), arrived, limits)


def test_nothing() -> None:
    found = demand([], [])
    assert (found.decode, found.step, found.first, found.admit, found.arriving) == (0, 0, 0, 0, 0)
    assert found.ahead == 0


def test_who_decodes_needs_a_block() -> None:
    found = demand([], [request(5, 10), request(5, 10)], arrived=1, block_tokens=16)
    assert found.decode == found.step == found.first == found.admit == 3 * 16


def test_the_next_in_line_wants_to_see_its_whole_answer() -> None:
    found = demand([request(30, 50), request(20, 40)], [])
    assert found.step == 30 + 1 + 20 + 1
    assert found.first == 30 + 50 + 2 + 1
    assert found.admit == found.ahead == 30 + 50 + 2 + 20 + 40 + 2 + 1
    assert found.arriving == 2


def test_running_requests_are_expected_to_go_on() -> None:
    found = demand([request(30, 50)], [request(9, 40, written=10)])
    assert found.first == 1 + 15 + 1 + 30 + 50 + 2


def test_an_answer_counts_up_to_what_the_scheduler_reckons_with() -> None:
    assert demand([request(30, 9999)], [], answer=100).first == 30 + 100 + 2 + 1


def test_a_chunk_is_all_that_a_step_takes_of_prompts() -> None:
    found = demand([request(250, 5), request(40, 5)], [])
    assert found.step == 100 + 1
    assert found.arriving == 1


def test_a_prompt_that_is_not_cut_is_taken_whole() -> None:
    found = demand([request(2500, 5), request(40, 5)], [], chunk=None)
    assert found.step == 2500 + 1
    assert found.arriving == 1


def test_what_is_halfway_goes_first() -> None:
    found = demand([request(40, 5)], [], chunked=request(250, 7, cached=200))
    assert found.first == 50 + 7 + 2 + 1
    assert found.step == 50 + 1 + 40 + 1
    assert found.arriving == 2


def test_no_more_arrive_than_may_run() -> None:
    waiting = [request(4, 5) for _ in range(9)]
    assert demand(waiting, [request(5, 5)] * 5).arriving == 3
    assert demand(waiting, [request(5, 5)] * 8).arriving == 0


def test_who_gave_way_comes_with_what_it_had_written() -> None:
    found = demand([request(30, 50, written=20)], [])
    assert found.step == 50 + 1
    assert found.first == 50 + 30 + 2 + 1


def test_the_step_after_this_one_is_thought_of() -> None:
    waiting = [request(60, 10) for _ in range(9)]
    found = demand(waiting, [])
    assert (found.arriving, found.step) == (2, 60 + 1 + 39 + 1)
    assert found.admit == 2 * (60 + 10 + 2) + 1
    assert found.ahead == 4 * (60 + 10 + 2) + 1  # prompts of 200 tokens are two steps
    assert demand(waiting, [request(1, 1)] * 5).ahead == 5 + 3 * (60 + 10 + 2) + 1 + 2


def windows(waiting: list[Any], chunked: Any = None, chunk: int | None = 100) -> Any:
    from kvcached_core.engines.sglang.demand import Limits, demand_of_windows

    limits = Limits(1, chunk, 1000, 8, 4096, 0.5, window=64)
    return demand_of_windows(waiting, chunked, SimpleNamespace(reqs=[request(9, 40)]), 2, limits)


def test_of_windows_a_request_wants_to_see_one_whatever_it_may_write() -> None:
    found = windows([request(40, 500), request(50, 500)])
    assert (found.decode, found.arriving) == (3, 2)
    assert found.first == 3 + 64 + 2
    assert found.admit == 3 + 2 * (64 + 2)
    assert found.step == 3 + 40 + 50 + 2


def test_of_windows_it_wants_to_see_what_a_step_takes_of_its_prompt() -> None:
    assert windows([request(250, 500)]).first == 3 + 100 + 2
    assert windows([request(250, 500)], chunk=None).first == 3 + 250 + 2
    assert windows([], request(250, 500, cached=160)).first == 3 + 90 + 2
