"""The scheduler's half over several ranks, which agree by transactions."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.storage_pair import PAGE, PER_PAGE, Pair, tokens, until
from kvcached_core.instance.agreement import TransactedAgreement
from kvcached_core.txn.transport import sockets

pytestmark = [pytest.mark.engine]

Make = Callable[..., Pair]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    pairs: list[Pair] = []

    def build(name: str = "one", **arguments: Any) -> Pair:
        shape = {"num_ranks": 2, "transacted": True, "pages": 20, "num_blocks": 40}
        pairs.append(Pair(tmp_path / "budget", name, **{**shape, **arguments}))
        return pairs[-1]

    yield build
    for pair in pairs:
        pair.close()


def created(pair: Pair) -> list[int]:
    """Pages that each rank has memory for."""
    rows = {row.rank: row.created for row in pair.budget.rows()}
    return [rows[rank] // PAGE for rank in sorted(rows)]


def test_blocks_come_and_go_at_all_ranks(make: Make) -> None:
    pair = make(num_ranks=3, pages=30, prefix_bound=0)
    request = pair.admit(tokens(5 * PER_PAGE - 1))
    assert request is not None
    pair.step()
    assert created(pair) == [5, 5, 5]
    pair.finish(request)
    assert pair.rest() == 1
    pair.settle()
    assert pair.ledger.pages("owned") == 1
    assert created(pair) == [1, 1, 1]
    assert pair.storage.supply.segment.failure() == ""


def test_what_one_rank_cannot_have_no_rank_keeps(make: Make) -> None:
    pair = make()
    pair.drivers[1].reset()
    pair.drivers[1].fail_at("create", 3, "oom")
    assert pair.pool.reserve_blocks(5 * PER_PAGE - 1) is False
    pair.settle()
    assert pair.ledger.pages("owned") == 3
    assert pair.ledger.pages("preparing") == 0
    assert created(pair) == [3, 3]
    assert pair.pool.reserve_blocks(3 * PER_PAGE - 1) is True
    # What was refused is asked for again when something has changed in the record.
    until(lambda: all(row.want for row in pair.budget.rows()), "the wish of both ranks")
    assert pair.admit(tokens(5 * PER_PAGE - 1)) is not None
    pair.step()


def test_a_page_that_one_rank_cannot_unmap_is_used_again(make: Make) -> None:
    pair = make(prefix_bound=0)
    request = pair.admit(tokens(3 * PER_PAGE - 1))
    assert request is not None
    pair.step()
    pair.finish(request)
    pair.drivers[0].reset()
    pair.drivers[0].fail_at("unmap", 1)
    pair.step()
    pair.settle()
    assert pair.ledger.pages("owned") == 2
    assert created(pair) == [2, 2]
    pair.mapped -= {1, 2}  # what is owned anew is told anew
    assert pair.admit(tokens(3 * PER_PAGE - 1)) is not None
    pair.step()


def test_memory_that_a_driver_keeps_shrinks_the_pool(make: Make) -> None:
    pair = make(prefix_bound=0)
    request = pair.admit(tokens(3 * PER_PAGE - 1))
    assert request is not None
    pair.step()
    pair.finish(request)
    pair.drivers[1].reset()
    pair.drivers[1].fail_at("release", 1)
    pair.step()
    pair.settle()
    assert pair.ledger.pages("quarantined") == 1
    assert created(pair) == [1, 2]


def test_nothing_goes_before_every_rank_has_done_the_step(make: Make) -> None:
    pair = make(prefix_bound=0)
    request = pair.admit(tokens(6))
    assert request is not None
    pair.step()
    pair.finish(request)
    update = pair.storage.take_update()
    assert update is not None and update.retire == (1,)
    pair.ranks[0].retire((), update.epoch)
    until(lambda: not pair.arenas[0].is_mapped(PAGE), "rank 0 has unmapped the page")
    pair.storage.has_pending_update()
    assert pair.ledger.page_state(1) == "retiring"
    assert pair.arenas[1].is_mapped(PAGE)
    assert created(pair) == [2, 2]
    pair.ranks[1].retire((), update.epoch)
    pair.settle()
    assert pair.ledger.page_state(1) == "virtual"
    assert created(pair) == [1, 1]


def test_a_rank_that_is_gone_stops_the_engine_and_is_named(make: Make) -> None:
    pair = make()
    pair.servers[1].close()
    until(lambda: bool(pair.storage.supply.agreement.failure()), "seen")
    with pytest.raises(RuntimeError, match="engine one failed: rank 1 is gone"):
        pair.admit(tokens(PER_PAGE))


def test_ranks_of_one_device_pay_for_a_page_together(make: Make) -> None:
    pair = make(pages=16)
    assert pair.pool.get_num_free_blocks() == 8 * PER_PAGE - 1
    assert pair.admit(tokens(8 * PER_PAGE - 1)) is not None
    pair.step()
    assert created(pair) == [8, 8]
    assert pair.admit(tokens(PER_PAGE, seed=1)) is None


def test_a_steady_step_sends_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bytes] = []
    send = sockets.send

    def count(peer: socket.socket, packet: bytes) -> bool:
        said.append(packet)
        return send(peer, packet)

    pair = make()
    monkeypatch.setattr(sockets, "send", count)
    request = pair.admit(tokens(6))
    assert request is not None
    pair.step()
    pair.settle()
    assert said
    said.clear()
    for _ in range(200):
        pair.step()
    assert not said


def test_one_rank_needs_no_agreement(make: Make) -> None:
    pair = make(num_ranks=1, transacted=False)
    assert not isinstance(pair.storage.supply.agreement, TransactedAgreement)


def test_a_rank_of_ones_own_is_no_neighbour(make: Make) -> None:
    """What another rank of the engine lacks it does not give; what a neighbour lacks it does."""
    pair = make(pages=16)
    request = pair.admit(tokens(8 * PER_PAGE - 1))
    assert request is not None
    pair.step()
    pair.finish(request)
    supply = pair.storage.supply
    supply.publish_wish(3)
    until(lambda: all(row.want for row in pair.budget.rows()), "the wish of both ranks")
    assert supply.pages_for_neighbours() == 0
    supply.publish_wish(0)
    neighbour = pair.budget.join("two", 0, 16 * PAGE)
    pair.budget.set_want(neighbour, 3 * PAGE)
    assert supply.pages_for_neighbours() > 0
    pair.budget.set_want(neighbour, 0)
    pair.budget.leave(neighbour)
