"""The demo's figures show what they claim: requests and bursts that no fixed half can hold."""

from pathlib import Path

import pytest
import scene
from kinds import SglangServer, VllmServer
from scene import MIXED, PAIRS, SAME, Pair
from workload import (
    ANSWER_TOKENS,
    Burst,
    bursts,
    by_model,
    load,
    load_answers,
    save,
    save_answers,
    workload,
)

from support.tiny_model import byte_tokenizer

each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


def blocks(burst: Burst) -> int:
    return sum(
        -(-(len(request.prompt) + request.max_tokens) // scene.BLOCK_TOKENS)
        for request in burst.requests
    )


def test_one_long_request_does_not_fit_in_half_but_in_the_budget() -> None:
    need = scene.MAX_MODEL_LEN // scene.BLOCK_TOKENS * scene.BLOCK_BYTES
    assert scene.HALF < need < scene.CAPACITY - scene.FLOOR


@each_pair
def test_a_burst_needs_more_than_half_and_leaves_the_neighbours_floor(pair: Pair) -> None:
    large = [burst for burst in bursts(pair) if len({r.engine for r in burst.requests}) == 1]
    assert len(large) == 2 * pair.rounds
    for burst in large:
        assert scene.HALF < blocks(burst) * scene.BLOCK_BYTES < scene.CAPACITY - scene.FLOOR


@pytest.mark.parametrize(
    ("pair", "wanted"),
    [
        (SAME, ["A", "B", "A", "B", "A+B", "A", "B"]),
        (MIXED, ["vLLM", "SGLang", "SGLang+vLLM", "vLLM", "SGLang"]),
    ],
)
def test_bursts_alternate_and_both_engines_are_busy_once(pair: Pair, wanted: list[str]) -> None:
    asked = ["+".join(sorted({r.engine for r in burst.requests})) for burst in bursts(pair)]
    assert asked == wanted


def test_one_pair_is_of_one_kind_of_engine_and_one_of_both() -> None:
    kinds = [[engine.kind for engine in pair.engines] for pair in PAIRS]
    assert kinds == [["vllm", "vllm"], ["vllm", "sglang"]]
    assert len({pair.device for pair in PAIRS}) == len(PAIRS)


@each_pair
def test_prompts_differ_so_that_no_burst_is_answered_from_the_prefix_cache(pair: Pair) -> None:
    prompts = [request.prompt for burst in bursts(pair) for request in burst.requests]
    assert len({prompt[: scene.BLOCK_TOKENS] for prompt in prompts}) == len(prompts)


@each_pair
def test_requests_fit_the_model(pair: Pair) -> None:
    for burst in bursts(pair):
        for request in burst.requests:
            assert 0 < len(request.prompt) <= scene.MAX_MODEL_LEN - ANSWER_TOKENS


def test_a_workload_is_the_same_each_time_and_survives_its_file(tmp_path: Path) -> None:
    save(workload(), tmp_path / "workload.json")
    assert load(tmp_path / "workload.json") == workload()


def test_every_request_is_asked_of_one_upstream_whose_model_is_the_engines() -> None:
    work = workload()
    asked = [(kind, by_model(work, kind)) for kind in ("vllm", "sglang")]
    assert {kind: set(models) for kind, models in asked} == {"vllm": {"A", "B"}, "sglang": {"C"}}
    models = {(pair.name, e.name): e.model for pair in PAIRS for e in pair.engines}
    keys = []
    for _, found in asked:
        for model, requests in found.items():
            for key, request in requests:
                keys.append(key)
                assert work[key[0]][key[1]].requests[key[2]] == request
                assert models[key[0], request.engine] == model
    total = sum(len(burst.requests) for bursts in work.values() for burst in bursts)
    assert len(set(keys)) == len(keys) == total


def test_answers_survive_their_file(tmp_path: Path) -> None:
    answers = {("demo", 0, 1): [7, 8], ("mixed", 2, 0): "a\u0120b"}
    save_answers(answers, tmp_path / "answers.json")
    assert load_answers(tmp_path / "answers.json") == answers


def test_an_answer_is_what_tells_the_tokens() -> None:
    choice = {"text": "a\u0120b", "token_ids": [7, 8, 9]}
    assert VllmServer.read(VllmServer, choice) == [7, 8, 9]  # type: ignore[arg-type]
    assert SglangServer.read(SglangServer, choice) == "a\u0120b"  # type: ignore[arg-type]


def test_sglang_s_model_has_a_letter_for_every_token() -> None:
    letters = {model.name: model.letters for model in scene.MODELS}
    kinds = {(engine.kind, engine.model) for pair in PAIRS for engine in pair.engines}
    assert {letters[model] for kind, model in kinds if kind == "sglang"} == {True}


def test_a_text_of_letters_tells_the_tokens() -> None:
    tokenizer = byte_tokenizer(letters=True)
    ids = list(range(len(tokenizer)))
    letters = [tokenizer.decode([number], skip_special_tokens=False) for number in ids]
    assert all(len(letter) == 1 for letter in letters) and len(set(letters)) == len(ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "".join(letters)


def test_each_engine_has_processors_of_its_own_where_there_are_two() -> None:
    chosen = [set(scene.cores_of(place).split(",")) for place in (0, 1)]
    assert all(chosen)
    assert len(chosen[0] | chosen[1]) == 1 or not chosen[0] & chosen[1]
