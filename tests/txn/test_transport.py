"""Transactions between processes, over the host driver and real budgets."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from kvcached_core.txn import Prepare, Terms
from kvcached_core.txn.transport import Hello, Transactions, sockets
from kvcached_core.txn.transport.wire import MAX_BYTES, BadPacket, decode_at_rank, encode
from txn.instance import Instance, eventually, instance
from txn.worker import GRANULE, INSTANCE

HASTY = Terms(retry=1, grow=5, shrink=5, decide=5)


def test_all_ranks_grow_and_shrink(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40, 40]) as engine:
        (ended,) = engine.grow(*range(1, 33))
        assert ended.owned == tuple(range(1, 33))
        assert engine.held() == [32, 32, 32]
        engine.step(*range(1, 33))
        assert [member.do("held") for member in engine.members] == [(33, 33)] * 3
        (ended,) = engine.shrink(*range(1, 31))
        assert ended.virtual == tuple(range(1, 31))
        assert engine.held() == [2, 2, 2]
        assert engine.grow(3)[0].owned == (3,)
        assert all(member.do("zero", [3]) for member in engine.members)


def test_stages_with_other_bytes_per_page(tmp_path: Path) -> None:
    sizes = (GRANULE, 3 * GRANULE // 2, GRANULE // 3 + 1)
    with instance(tmp_path, [40, 40, 40], page_bytes=sizes) as engine:
        assert engine.grow(1, 2, 3, 4)[0].owned == (1, 2, 3, 4)
        engine.step(1, 2, 3, 4)
        assert engine.shrink(2, 3)[0].virtual == (2, 3)
        assert engine.grow(2)[0].owned == (2,)
        assert all(member.do("zero", [2]) for member in engine.members)


def test_what_one_rank_refuses_no_rank_keeps(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 4, 40]) as engine:
        (ended,) = engine.grow(1, 2, 3, 4, 5)
        assert ended.owned == (1, 2, 3)
        assert ended.virtual == (4, 5)
        assert engine.held() == [3, 3, 3]
        (ended,) = engine.grow(6, 7)
        assert ended.virtual == (6, 7)
        assert engine.held() == [3, 3, 3]


def test_pages_wait_for_the_fence_of_each_rank(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40]) as engine:
        engine.grow(1, 2)
        engine.step(1, 2)
        engine.txn.begin("shrink", (1, 2), 2)
        first, second = engine.members
        first.do("step", 2, [])
        eventually(lambda: first.do("held") == (3, 1), "rank 0 has unmapped both, and keeps them")
        assert second.do("held") == (3, 3)
        assert engine.txn.is_open()
        second.do("step", 2, [])
        assert engine.wait()[0].virtual == (1, 2)
        assert engine.held() == [0, 0]


def test_a_page_that_one_rank_cannot_unmap_stays_owned_everywhere(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40]) as engine:
        engine.grow(1, 2)
        engine.step(1, 2)
        engine.members[1].do("fail", "unmap", 1)
        (ended,) = engine.shrink(1, 2)
        assert (ended.owned, ended.virtual) == ((1,), (2,))
        assert engine.held() == [1, 1]
        engine.step(1)
        assert [member.do("held")[1] for member in engine.members] == [2, 2]
        assert engine.shrink(1)[0].virtual == (1,)


def test_memory_that_a_driver_keeps_is_nobodys(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40]) as engine:
        engine.grow(1, 2)
        engine.members[0].do("fail", "release", 1)
        (ended,) = engine.shrink(1, 2)
        assert (ended.lost, ended.virtual) == ((1,), (2,))
        assert engine.held() == [1, 0]


def test_two_transactions_at_once(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40]) as engine:
        engine.grow(1, 2)
        engine.txn.begin("grow", (3, 4))
        engine.txn.begin("shrink", (1,), 1)
        engine.step()
        assert [len(ended.owned) for ended in sorted(engine.wait(), key=lambda e: e.id)] == [2, 0]
        assert engine.held() == [3, 3]


def test_many_pages_are_many_transactions(tmp_path: Path) -> None:
    with instance(tmp_path, [6000], pages=5000, page_bytes=(GRANULE,)) as engine:
        ended = engine.grow(*range(1, 4999))
        assert [len(each.owned) for each in ended] == [4096, 902]
        assert engine.held() == [4998]


# --- whoever connects ---


def test_another_instance_rank_or_start_is_not_answered(tmp_path: Path) -> None:
    with instance(tmp_path, [40]) as engine:
        me = Hello(INSTANCE, engine.start, 0)
        wrong = [
            Hello("other", engine.start, 0),
            Hello(INSTANCE, "0" * 32, 0),
            Hello(INSTANCE, engine.start, 1),
            Hello(INSTANCE, engine.start, 0, version=99),
        ]
        for hello in wrong:
            assert greet(engine, encode(hello)) == b""
        assert greet(engine, b"nonsense") == b""
        assert greet(engine, encode(Prepare(1, "grow", (1,), 0, 1))) == b""
        assert greet(engine, bytes(MAX_BYTES + 1)) == b""
        assert engine.grow(1)[0].owned == (1,)
        assert greet(engine, encode(me)) == encode(me)
        assert engine.grow(2)[0].owned == (2,)  # whose connection was taken connects again


def greet(engine: Instance, packet: bytes) -> bytes:
    """What rank 0 answers to a first packet."""
    stranger = sockets.connect(engine.sockets, 0, engine.start)
    stranger.settimeout(60)
    stranger.send(packet)
    answer = stranger.recv(1000)
    stranger.close()
    return answer


def test_another_user_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sockets"
    listener = sockets.listen(folder, 0, "start")
    ours = sockets.connect(folder, 0, "start")
    them = os.geteuid() + 1
    monkeypatch.setattr(sockets, "_is_ours", lambda peer: _user(peer) == them)
    assert sockets.accept(listener) is None
    assert ours.recv(1) == b""
    with pytest.raises(PermissionError, match="another user listens at"):
        sockets.connect(folder, 0, "start")


def _user(peer: socket.socket) -> int:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(raw[4:8], "little")


def test_credentials_are_those_of_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    listener = sockets.listen(folder, 0, "start")
    ours = sockets.connect(folder, 0, "start")
    theirs = sockets.accept(listener)
    assert theirs is not None
    assert _user(theirs) == _user(ours) == os.geteuid()


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    sockets.listen(folder, 0, "start")
    folder.chmod(0o750)
    with pytest.raises(PermissionError, match=r"mode 750; it must belong to user .* with mode 700"):
        sockets.connect(folder, 0, "start")


def test_packets_are_bounded() -> None:
    pages = tuple(range(1 << 20, (1 << 20) + 4096))
    assert len(encode(Prepare(1 << 40, "shrink", pages, 1 << 40, 1 << 40))) < MAX_BYTES
    assert decode_at_rank(encode(Prepare(1, "grow", pages, 0, 1))) == Prepare(
        1, "grow", pages, 0, 1
    )
    for wrong in (
        encode(Prepare(1, "grow", (*pages, 1), 0, 1)),
        encode(Prepare(0, "grow", (), 0, 1)),
        encode(Prepare(1, "grow", (-1,), 0, 1)),
        encode(Prepare(1, "other", (), 0, 1)),  # type: ignore[arg-type]
        encode(Hello("x" * 2000, "start", 0)),
        b"\x80",
    ):
        with pytest.raises(BadPacket):
            decode_at_rank(wrong)


# --- ranks that die, stop and go on ---


def test_a_killed_rank_ends_the_pool_and_is_named(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40, 40]) as engine:
        engine.grow(1, 2)
        engine.members[1].end()
        engine.grow(3)
        assert engine.txn.failure.startswith("rank 1 is gone: its connection ended")
        survivors = [engine.members[0], engine.members[2]]
        eventually(lambda: [m.do("held")[0] for m in survivors] == [3, 3], "3 is given back")


def test_a_rank_that_stops_for_a_while_takes_part_again(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40]) as engine:
        engine.members[1].signal(signal.SIGSTOP)
        engine.txn.begin("grow", (1, 2))
        eventually(lambda: engine.members[0].do("held")[0] == 3, "rank 0 has prepared")
        engine.members[1].signal(signal.SIGCONT)
        assert engine.wait()[0].owned == (1, 2)


def test_a_rank_that_stays_stopped_ends_the_pool_within_the_deadline(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40], terms=HASTY) as engine:
        engine.members[1].signal(signal.SIGSTOP)
        engine.grow(1)
        assert engine.txn.failure == (
            "rank 1 did not answer the abort of transaction 1 (grow of 1 pages) in time"
        )
        engine.members[1].signal(signal.SIGCONT)


def test_who_waits_is_told_when_the_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(peer: socket.socket) -> bytes:
        raise ValueError("no packets today")

    with instance(tmp_path, [40]) as engine:
        monkeypatch.setattr(sockets, "receive", fail)
        assert engine.grow(1) == []
        assert "transactions ended: ValueError('no packets today')" in engine.txn.failure
        monkeypatch.undo()


def test_a_rank_whose_driver_thread_ended_is_named(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40], terms=HASTY) as engine:
        engine.txn.begin("shrink", (5,), 1)  # which no rank owns
        engine.step()
        engine.wait()
        assert "rank 0, 1 did not answer the abort" in engine.txn.failure
        assert "is to be unmapped, which rank 0 does not own" in engine.segment.failure()


def test_listeners_live_as_long_as_their_worker(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40]) as engine:
        names = sorted(path.name for path in engine.sockets.iterdir())
        assert names == [f"{rank}-{engine.start}.socket" for rank in (0, 1)]
        engine.members[0].close()
        assert sorted(path.name for path in engine.sockets.iterdir()) == names[1:]
        engine.members[1].end()
        with pytest.raises(ConnectionRefusedError):
            sockets.connect(engine.sockets, 1, engine.start)
        with pytest.raises(RuntimeError, match="rank 0 of engine engine does not take part"):
            Transactions(engine.sockets, INSTANCE, engine.start, 2)


def test_a_forked_child_keeps_no_listener(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    listener = sockets.listen(folder, 0, "start")
    (running, runs), (waits, go_on) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go_on)
        os.write(runs, b"x")
        os.read(waits, 1)
        os._exit(0)
    os.read(running, 1)
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(folder, 0, "start")
    os.close(go_on)
    os.waitpid(child, 0)
    for descriptor in (running, runs, waits):
        os.close(descriptor)


def test_an_engine_at_rest_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bytes] = []
    send = sockets.send

    def count(peer: socket.socket, packet: bytes) -> bool:
        said.append(packet)
        return send(peer, packet)

    with instance(tmp_path, [40, 40], terms=HASTY) as engine:
        monkeypatch.setattr(sockets, "send", count)
        engine.grow(1)
        assert len(said) == 5  # a prepare and a commit a rank, and the thread is woken once
        for _ in range(100):
            engine.step(1)
        assert len(said) == 5
