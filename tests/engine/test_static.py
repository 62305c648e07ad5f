"""With the default backend the fork is upstream: same blocks, same tensors, same graphs' hash."""

import pytest

from engine.processes import Engines, Run

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.conformance("static", core=True)]


@pytest.fixture(scope="module")
def static(engines: Engines) -> Run:
    return engines.run("static", {"inside": True}, in_process=True)


def test_tokens_are_upstreams(static: Run, upstream: Run) -> None:
    assert len(upstream["tokens"]) == 200
    assert static["tokens"] == upstream["tokens"]


def test_sequence_of_block_ids_is_upstreams(static: Run, upstream: Run) -> None:
    assert len(upstream["inside"]["block_ids"]) > 800
    assert static["inside"]["block_ids"] == upstream["inside"]["block_ids"]


def test_tensors_are_upstreams(static: Run, upstream: Run) -> None:
    assert len(upstream["inside"]["tensors"]) == 4
    assert static["inside"]["tensors"] == upstream["inside"]["tensors"]
    assert static["inside"]["offsets"] == upstream["inside"]["offsets"]


def test_compute_hash_is_upstreams(static: Run, upstream: Run) -> None:
    assert static["compute_hash"] == upstream["compute_hash"]


def test_it_is_the_fork_that_ran(static: Run, upstream: Run) -> None:
    assert static["fork"] and not upstream["fork"]


def test_no_memory_of_ours_is_taken(static: Run) -> None:
    assert static["memory_peak"] == 0
