"""The demo's figures show what they claim: requests and bursts that no fixed half can hold."""

from pathlib import Path

import scene
from workload import ANSWER_TOKENS, Burst, bursts, load, save


def blocks(burst: Burst) -> int:
    return sum(
        -(-(len(request.prompt) + request.max_tokens) // scene.BLOCK_TOKENS)
        for request in burst.requests
    )


def test_one_long_request_does_not_fit_in_half_but_in_the_budget() -> None:
    need = scene.MAX_MODEL_LEN // scene.BLOCK_TOKENS * scene.BLOCK_BYTES
    assert scene.HALF < need < scene.CAPACITY - scene.FLOOR


def test_a_burst_needs_more_than_half_and_leaves_the_neighbours_floor() -> None:
    large = [burst for burst in bursts() if len({r.model for r in burst.requests}) == 1]
    assert len(large) == 6
    for burst in large:
        assert scene.HALF < blocks(burst) * scene.BLOCK_BYTES < scene.CAPACITY - scene.FLOOR


def test_bursts_alternate_and_both_models_are_busy_once() -> None:
    asked = ["".join(sorted({r.model for r in burst.requests})) for burst in bursts()]
    assert asked == ["A", "B", "A", "B", "AB", "A", "B"]


def test_prompts_differ_so_that_no_burst_is_answered_from_the_prefix_cache() -> None:
    prompts = [request.prompt for burst in bursts() for request in burst.requests]
    assert len({prompt[: scene.BLOCK_TOKENS] for prompt in prompts}) == len(prompts)


def test_requests_fit_the_model() -> None:
    for burst in bursts():
        for request in burst.requests:
            assert 0 < len(request.prompt) <= scene.MAX_MODEL_LEN - ANSWER_TOKENS


def test_a_workload_is_the_same_each_time_and_survives_its_file(tmp_path: Path) -> None:
    save(bursts(), tmp_path / "workload.json")
    assert load(tmp_path / "workload.json") == bursts()


def test_each_model_has_processors_of_its_own_where_there_are_two() -> None:
    chosen = [set(scene.cores_of(model).split(",")) for model in scene.MODELS]
    assert all(chosen)
    assert len(chosen[0] | chosen[1]) == 1 or not chosen[0] & chosen[1]
