"""A rank's server that has failed, and folders that nobody's engine is left for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from kvcached_core.budget import create_segment, remove_segment, sockets_folder
from kvcached_core.txn import Prepare
from kvcached_core.txn.transport import Hello, sockets
from kvcached_core.txn.transport.wire import encode
from txn.instance import PATIENCE_S, eventually, instance
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


def test_sockets_of_a_rank_that_listened_too_late_go_with_the_next_start(tmp_path: Path) -> None:
    """Its engine had ended, and it was killed."""
    gone, lives = (create_segment(tmp_path, name, 8, 2) for name in ("gone", "lives"))
    sockets.listen(sockets_folder(lives), 0, "start")
    remove_segment(gone)
    sockets.listen(sockets_folder(gone), 1, "start").close()
    remove_segment(create_segment(tmp_path, "next", 8, 1))
    found = sorted(path.name for path in (tmp_path / "instances").iterdir())
    assert found == ["lives.segment", "lives.sockets"]
    remove_segment(lives)


def test_a_rank_listens_while_a_namesake_of_before_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose last listener goes between the making of the folder and its use."""
    folder, mkdir = tmp_path / "engine.sockets", Path.mkdir
    before = sockets.listen(folder, 0, "before")

    def hit(path: Path, *given: Any, **more: Any) -> None:
        mkdir(path, *given, **more)
        sockets.unlink(folder, 0, "before")
        before.close()

    monkeypatch.setattr(Path, "mkdir", hit)
    listener = sockets.listen(folder, 0, "now")
    sockets.connect(folder, 0, "now").close()
    listener.close()
    assert [path.name for path in folder.iterdir()] == ["0-now.socket"]


def test_who_finds_a_crowd_before_a_rank_waits(tmp_path: Path) -> None:
    folder = tmp_path / "engine.sockets"
    listener = sockets.listen(folder, 0, "start")
    crowd = []
    with pytest.raises(BlockingIOError):
        while len(crowd) < 1000:
            crowd.append(sockets.connect(folder, 0, "start"))
    later = threading.Timer(0.3, sockets.accept, [listener])
    later.start()
    sockets.connect(folder, 0, "start", patience=PATIENCE_S).close()
    later.join()
    for each in [listener, *crowd]:
        each.close()
    assert len(crowd) > 10
