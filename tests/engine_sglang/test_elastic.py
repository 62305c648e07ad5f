"""Elastic storage gives upstream's tokens, whatever memory there is; what is not needed goes back.

Ranges without memory are inaccessible: an access ends the engine.
"""

from __future__ import annotations

import pytest

from engine.processes import Run
from engine_sglang.processes import SglangEngines

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.conformance("parity")]

MIB = 1 << 20
PAGE = 128 << 10  # 64 tokens of the tiny model
CAPACITY = 16 * MIB
LIMIT = 5 * MIB // 2
AT_REST = 3 * PAGE  # padding's page and the reserve
SMALL = {"page_size": PAGE}
BURSTS = 100
BUSY_CHECKS = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
# The scheduler reckons with short answers, also soon after that has cost a request its work.
BOLD = {
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "4",
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "3",
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": "0.0",
}


@pytest.fixture(scope="module")
def unbounded(engines: SglangEngines) -> Run:
    """Room for everything, with overlap. Then a neighbour needs most of it; once more; no prefix;
    sleep; once more."""
    storage = {**SMALL, "capacity": CAPACITY}
    budget = engines.storage("unbounded")["budget_dir"]
    neighbour = [budget, "host:unbounded", CAPACITY - 2 * MIB]
    more = {"neighbour": neighbour, "flush": True, "sleeps": True}
    return engines.elastic("unbounded", storage, engine={"max_total_tokens": None}, **more)


@pytest.fixture(scope="module")
def tight(engines: SglangEngines) -> Run:
    """Too little for what runs at once, without overlap; a tensor has an arena of its own. Then,
    many small bursts."""
    engine = {"disable_overlap_schedule": True}
    storage = {**SMALL, "limit": LIMIT, "prefix_bound": "256KiB", "layout": "per-layer"}
    environment = BUSY_CHECKS | BOLD
    return engines.elastic("tight", storage, engine=engine, environment=environment, bursts=BURSTS)


@pytest.fixture(scope="module")
def without_tree(engines: SglangEngines) -> Run:
    """No prefix is kept, and no prompt is cut; little memory, with overlap."""
    engine = {"disable_radix_cache": True, "chunked_prefill_size": -1}
    return engines.elastic("without-tree", {**SMALL, "limit": 2 * MIB}, engine=engine)


@pytest.fixture(scope="module")
def paged(engines: SglangEngines) -> Run:
    """Pages of 16 tokens, which take Triton, interpreted here; with overlap, too little memory."""
    return engines.elastic(
        "paged",
        {**SMALL, "limit": LIMIT},
        count=40,
        engine={"page_size": 16},
        environment={"TRITON_INTERPRET": "1", **BOLD},
        flush=True,
    )


@pytest.mark.conformance("parity", core=True)
def test_tokens_with_room_for_everything(unbounded: Run, upstream: Run) -> None:
    assert unbounded["tokens"] == upstream["tokens"]
    assert unbounded["cached_tokens"] >= upstream["cached_tokens"]  # it has more slots
    assert unbounded["retractions"] == 0


@pytest.mark.conformance("parity", core=True)
def test_tokens_while_requests_give_way(tight: Run, upstream: Run) -> None:
    assert tight["tokens"] == upstream["tokens"]
    assert tight["retractions"] > 5
    assert tight["memory_peak"] <= LIMIT


def test_tokens_without_a_tree(without_tree: Run, upstream: Run) -> None:
    assert without_tree["tokens"] == upstream["tokens"]
    assert without_tree["cached_tokens"] == 0
    assert without_tree["memory_peak"] <= 2 * MIB
    assert without_tree["memory_after_run"] == AT_REST


def test_tokens_of_larger_pages(paged: Run, upstream: Run) -> None:
    assert paged["tokens"] == upstream["tokens"][:40]
    assert paged["inside"]["allocator"].endswith("ElasticPagedAllocator")
    assert paged["memory_peak"] <= LIMIT
    assert paged["retractions"] > 0


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=pytest.mark.conformance("poison", core=True))
            for name in ("unbounded", "tight")
        ),
        *(
            pytest.param(name, marks=pytest.mark.conformance("poison"))
            for name in ("without_tree", "paged")
        ),
    ],
)
def test_what_can_be_taken_has_memory(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    assert run["inside"]["looks"]["count"] > 50
    assert run["inside"]["looks"]["wrong"] == []
    assert run["inside"]["backend"]["pages_released"] > 0


def test_a_token_s_bytes_lie_together_unless_told_otherwise(unbounded: Run, tight: Run) -> None:
    token = 8 * 64  # tensors, numbers of a token in each
    ours, theirs = unbounded["inside"]["tensors"], tight["inside"]["tensors"]
    assert [stride for _, stride, _ in ours] == [[token, 32, 1]] * 8
    assert unbounded["inside"]["offsets"] == list(range(0, token, 64))
    assert [stride for _, stride, _ in theirs] == [[64, 32, 1]] * 8


@pytest.mark.conformance("parity", core=True)
def test_it_starts_with_one_page(unbounded: Run) -> None:
    assert unbounded["memory_at_start"] == PAGE
    assert unbounded["inside"]["backend"]["num_pages"] * PAGE >= CAPACITY


@pytest.mark.conformance("parity", core=True)
def test_prefixes_stay_until_a_neighbour_needs_the_memory(unbounded: Run, upstream: Run) -> None:
    assert unbounded["memory_after_run"] > 2 * MIB
    found = unbounded["neighbour"]
    assert found["refused_first"] and found["granted"]
    assert found["seconds"] < 2
    assert unbounded["tokens_again"] == upstream["tokens"]


def test_without_prefixes_memory_falls_to_the_reserve(unbounded: Run, paged: Run) -> None:
    assert unbounded["memory_flushed"] == AT_REST
    assert paged["memory_flushed"] == AT_REST


@pytest.mark.conformance("parity", core=True)
def test_an_engine_that_sleeps_keeps_the_page_of_padding(unbounded: Run, upstream: Run) -> None:
    assert unbounded["memory_asleep"] == PAGE
    assert unbounded["tokens_awake"] == upstream["tokens"]


@pytest.mark.conformance("parity", core=True)
def test_no_slot_is_lost_at_rest_after_any_of_many_bursts(tight: Run, upstream: Run) -> None:
    """The checks are SGLang's, and end the engine where one fails."""
    assert len(tight["bursts"]) == BURSTS
    for burst in tight["bursts"]:
        for number, answer in burst:
            assert answer == upstream["tokens"][number][:4]
    checks = tight["inside"]["checks"]
    assert checks["rests"] > BURSTS
    assert checks["busy"] > 3 * BURSTS


@pytest.mark.conformance("parity", core=True)
def test_few_prefixes_are_kept_under_a_bound(tight: Run) -> None:
    assert AT_REST <= tight["memory_after_run"] <= AT_REST + 2 * PAGE
