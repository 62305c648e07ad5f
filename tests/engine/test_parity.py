"""Elastic storage gives upstream's tokens, with every page that is not in use inaccessible.

The model's two hundred outputs all differ, and harm to one live page is noticed: made inaccessible
it kills the engine, overwritten it changes the outputs of those who read it.
"""

import signal

import pytest

from engine.conftest import CAPACITY
from engine.processes import Engines, Run

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("parity", core=True)]

PAGE = 256 << 10  # four blocks of the tiny model
AT_REST = 3 * PAGE  # the null page and the reserve


@pytest.fixture(scope="module")
def tight(engines: Engines) -> Run:
    """Memory for a twentieth of the addresses; scheduler half and rank share a process."""
    events = {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}}
    storage = {"limit": "3MiB", "prefix_bound": "1MiB"}
    return engines.elastic(
        "tight", storage, inside=True, in_process=True, readable=True, engine=events
    )


def test_the_workload_has_teeth(upstream: Run) -> None:
    assert len({tuple(tokens) for tokens in upstream["tokens"]}) == 200
    assert upstream["metrics"]["vllm:prefix_cache_hits"] > 10_000


def test_tokens_unbounded(unbounded: Run, upstream: Run) -> None:
    assert unbounded["tokens"] == upstream["tokens"]


def test_tokens_under_preemption(tight: Run, upstream: Run) -> None:
    assert tight["metrics"]["vllm:num_preemptions"] > 0
    assert tight["tokens"] == upstream["tokens"]


def test_a_tight_limit_is_kept(tight: Run) -> None:
    assert 0 < tight["memory_peak"] <= 3 << 20
    assert tight["inside"]["rank"]["created"] == 12 < tight["inside"]["pages"]


def test_a_page_is_mapped_once_for_each_time_it_is_owned(tight: Run) -> None:
    counters = tight["inside"]["rank"]
    owned = counters["created"] - 1  # the null block's page is mapped at the start
    mapped = counters["mapped_ahead"] + counters["mapped_in_step"]
    assert owned - counters["released"] <= mapped <= owned


@pytest.mark.conformance("poison", core=True)
def test_what_is_not_mapped_cannot_be_read(tight: Run) -> None:
    inside, during = tight["inside"], tight["readable"]
    assert during["looks"] > 10
    assert during["wrong"] == []
    assert during["most_unmapped"] > 200
    assert inside["readable"] == inside["mapped"] < inside["pages"]


def test_blocks_of_all_layers_lie_together(tight: Run, upstream: Run) -> None:
    shape, stride, dtype = upstream["inside"]["tensors"][0]
    packed = [[shape, [4 * stride[0], *stride[1:]], dtype]] * 4
    layers = tight["inside"]["tensors"]
    assert [layer[0][1:] for layer in layers] == [layer[0][1:] for layer in packed]
    assert [layer[1:] for layer in layers] == [layer[1:] for layer in packed]


def test_memory_follows_use(unbounded: Run) -> None:
    assert unbounded["reset"] is True
    assert unbounded["memory_peak"] > 20 * PAGE
    assert unbounded["memory_after_run"] > 20 * PAGE  # prefixes are kept, no neighbour asks
    assert unbounded["memory_after_reset"] <= 4 * PAGE + PAGE


def test_an_idle_engine_gives_cached_memory_to_a_neighbour(unbounded: Run, upstream: Run) -> None:
    told = unbounded["neighbour"]
    assert unbounded["memory_after_run"] > CAPACITY // 8  # it has to give some of it up
    assert told["refused_first"] and told["granted"]
    print(f"given up {told['seconds']:.3f} s after the neighbour's need")
    assert unbounded["memory_after_neighbour"] <= CAPACITY // 8
    assert unbounded["tokens_again"] == upstream["tokens"]


def test_kv_cache_events_tell_the_truth(tight: Run) -> None:
    inside = tight["inside"]
    assert inside["events_removed"] > 100
    assert inside["events_cached"] > 0
    assert inside["events_hold"]


@pytest.fixture(scope="module")
def bound0(engines: Engines) -> Run:
    """Two processes that keep no prefix; the workload, then short bursts."""
    return engines.elastic("bound0", {"prefix_bound": "0B"}, bursts=100)


@pytest.mark.conformance("parity")
def test_no_prefix_is_kept_under_a_bound_of_nothing(bound0: Run, upstream: Run) -> None:
    assert bound0["tokens"] == upstream["tokens"]
    assert bound0["memory_after_run"] == AT_REST


@pytest.mark.conformance("parity")
def test_a_hundred_bursts_end_at_one_mark(bound0: Run) -> None:
    bursts = bound0["bursts"]
    assert len(bursts) == 100
    assert {after for _, after in bursts} == {bound0["memory_after_bursts"]} == {AT_REST}
    assert all(peak > AT_REST for peak, _ in bursts)


@pytest.mark.conformance("mutants")
def test_an_unmapped_live_page_kills_the_engine(engines: Engines) -> None:
    run = engines.elastic("unmap", {}, in_process=True, mutant=["unmap", 60], count=60)
    assert run.returncode == -signal.SIGSEGV
    assert run.result is None


@pytest.mark.conformance("mutants")
def test_a_corrupt_live_page_changes_its_readers(engines: Engines, upstream: Run) -> None:
    run = engines.elastic("poison", {}, in_process=True, mutant=["poison", 60], count=60)
    changed = {
        request.split("-")[0]
        for request, ours, theirs in zip(
            run["request_ids"], run["tokens"], upstream["tokens"], strict=False
        )
        if ours != theirs
    }
    owners = {owner.split("-")[0] for owner in run["owners"]}
    assert len(owners) >= 2
    assert len(changed & owners) > len(owners) / 2
