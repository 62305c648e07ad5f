"""A rank's server that has failed."""

from __future__ import annotations

from pathlib import Path

from kvcached_core.txn import Prepare
from kvcached_core.txn.transport import Hello, sockets
from kvcached_core.txn.transport.wire import encode
from txn.instance import eventually, instance
from txn.worker import INSTANCE


def test_a_rank_whose_server_failed_closes_as_any(tmp_path: Path) -> None:
    with instance(tmp_path, [40, 40]) as engine:
        engine.grow(1)
        ours = sockets.connect(engine.sockets, 0, engine.start)
        ours.setblocking(True)
        ours.send(encode(Hello(INSTANCE, engine.start, 0)))
        ours.recv(1000)
        ours.send(encode(Prepare(9, "grow", (1 << 30,), 0, 1)))  # which the pool does not have
        eventually(lambda: bool(engine.members[0].do("failure")), "the server has failed")
        ours.close()
