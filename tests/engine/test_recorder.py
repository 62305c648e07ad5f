"""The recording of a live block pool: replayed in the same shape it does the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.storage_pair import PAGE, PER_PAGE, Pair, tokens
from kvcached_core.engines.vllm import recorder
from kvcached_core.engines.vllm.log import logger
from kvcached_core.engines.vllm.queue import LedgerQueue
from kvcached_core.pool import GrowthPolicy
from kvcached_core.pool.allocation_log import Record, read_header, read_records
from kvcached_core.pool.replay import Replay

pytestmark = [pytest.mark.engine]

Make = Callable[..., Pair]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    pairs: list[Pair] = []

    def build(**arguments: Any) -> Pair:
        pairs.append(Pair(tmp_path / "budget", allocation_log=str(tmp_path / "a.log"), **arguments))
        return pairs[-1]

    yield build
    for pair in pairs:
        pair.close()


def records(path: Path) -> list[Record]:
    lines = path.read_text().splitlines(keepends=True)
    read_header(lines[0])
    return list(read_records(lines[1:]))


def test_what_is_recorded_is_what_was_asked(make: Make, tmp_path: Path) -> None:
    pair = make(prefix_bound=PAGE)
    first = pair.admit(tokens(5), 100)
    pair.step()
    second = pair.admit([*tokens(3), 9, 9, 9], 100)  # three hits, and two blocks of its own
    pair.step()
    assert first is not None and second is not None
    oldest = pair.requests[first][0].block_id
    pair.finish(first)
    pair.finish(second)
    pair.pool.evict_blocks({oldest})
    assert pair.pool.reset_prefix_cache()
    pair.rest()
    pair.storage.shutdown()
    header = read_header((tmp_path / "a.log").read_text().splitlines()[0])
    assert (header.num_blocks, header.blocks_per_page, header.page_bytes) == (64, PER_PAGE, PAGE)
    assert (header.reserve_pages, header.prefix_bound) == (0, PAGE)
    found = [(r.kind, list(r.handles) or r.number) for r in records(tmp_path / "a.log")]
    assert [f for f in found if f[0] not in "si"] == [
        ("p", 5),
        ("p", 2),
        ("c", [4, 3]),
        ("f", [6]),
        ("c", [5, 2, 1, 0]),
        ("u", [0]),
        ("r", 0),
    ]
    assert [f[0] for f in found].count("s") == 3
    times = [f[1] for f in found if f[0] in "si"]
    assert times == sorted(times)


def test_a_hit_of_unreferenced_blocks_is_recorded(make: Make, tmp_path: Path) -> None:
    pair = make()
    pair.finish(pair.admit(tokens(4), 100) or 0)
    assert pair.admit(tokens(6), 100) is not None
    pair.step()
    pair.storage.shutdown()
    kinds = [(r.kind, list(r.handles)) for r in records(tmp_path / "a.log")]
    assert ("t", [0, 1, 2, 3]) in kinds


def test_what_the_storage_evicts_by_itself_is_not_recorded(make: Make, tmp_path: Path) -> None:
    pair = make(prefix_bound=0)
    pair.finish(pair.admit(tokens(9), 100) or 0)
    pair.rest()
    assert pair.ledger.num_cached() == 0
    pair.storage.shutdown()
    assert [r.kind for r in records(tmp_path / "a.log") if r.kind != "i"] == ["p", "c", "s"]


@pytest.mark.parametrize("bound", ["none", 0, 2 * PAGE])
def test_a_replay_of_the_same_pool_ends_as_the_engine_did(
    make: Make, tmp_path: Path, bound: Any
) -> None:
    pair = make(pages=64, num_blocks=200, prefix_bound=bound, reserve_pages=2)
    for turn in range(60):
        request = pair.admit(tokens(3 + turn % 11, seed=turn % 5), 100)
        assert request is not None
        pair.step()
        pair.settle()
        if len(pair.requests) > 4:
            pair.finish(min(pair.requests))
    pair.step()
    pair.storage.shutdown()
    replay = Replay(200, PER_PAGE, GrowthPolicy(2), None if bound == "none" else bound // PAGE)
    totals = replay.run(records(tmp_path / "a.log"))
    assert totals.missed_blocks == 0 and totals.popped_blocks > 50
    assert replay.ledger.num_used() == pair.ledger.num_used()
    assert replay.ledger.num_cached() == pair.ledger.num_cached()
    assert abs(replay.ledger.pages("owned") - pair.ledger.pages("owned")) <= 2


def test_it_is_off_by_default(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "budget")
    assert type(pair.pool.free_block_queue) is LedgerQueue
    pair.close()


def test_an_idle_engine_has_written_all(make: Make, tmp_path: Path) -> None:
    pair = make()
    pair.finish(pair.admit(tokens(4), 100) or 0)
    pair.rest()
    assert records(tmp_path / "a.log")[-1].kind == "i"


def test_an_existing_file_is_not_overwritten(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("precious")
    with pytest.raises(ValueError, match=r"allocation_log: .*a\.log exists and is not overwritten"):
        make()
    assert (tmp_path / "a.log").read_text() == "precious"


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"allocation_log: .*/none/a\.log cannot be made: No such"):
        Pair(tmp_path / "budget", allocation_log=str(tmp_path / "none" / "a.log"))


def test_replicas_write_files_of_their_own(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "budget", name="one", allocation_log=str(tmp_path / "a.log"))
    assert recorder.log_path("/x/a.log", "one/dp3") == Path("/x/a.log.dp3")
    assert recorder.log_path("/x/a.log", "one") == Path("/x/a.log")
    pair.close()


def test_a_full_disk_ends_the_recording_and_not_the_engine(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *a: said.append(text % a))
    pair = make()
    pair.finish(pair.admit(tokens(4), 100) or 0)
    assert pair.storage._recorder is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, pair.storage._recorder._file.fileno())
    os.close(full)
    pair.rest()
    pair.finish(pair.admit(tokens(4), 100) or 0)
    pair.rest()
    assert len(said) == 1 and "has ended" in said[0] and "No space left" in said[0]


def test_a_log_has_a_greatest_size(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_BYTES", 1000)
    pair = make()
    for _ in range(300):
        pair.finish(pair.admit(tokens(4), 100) or 0)
        pair.storage.has_pending_update()
    assert 200 < (tmp_path / "a.log").stat().st_size <= 1000
    assert records(tmp_path / "a.log")
