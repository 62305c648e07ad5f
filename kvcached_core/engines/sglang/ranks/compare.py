"""A check of several ranks against one another: the counters of each of their steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import msgspec

from kvcached_core.engines.sglang.ranks.board import Board

_EXPLAIN_S = 1.0


class Comparison:
    """Each rank posts its counters behind each step. Whoever is not the first compares them with
    the first one's, as soon as those are there."""

    def __init__(self, board: Board, instance: str) -> None:
        self._board = board
        self._instance = instance
        self._step = 0
        self._own: deque[tuple[int, bytes]] = deque()
        self.compared = 0
        """Steps; at the first rank, those it posted."""

    def check(self, counters: Mapping[str, int]) -> None:
        """Behind a step. Raises RuntimeError, with the rank and the counters that differ, and what
        Board does."""
        self._step += 1
        own = msgspec.msgpack.encode(counters)
        self._board.post(self._step, own)
        if self._board.rank == 0:
            self.compared += 1
            return
        self._own.append((self._step, own))
        self._compare()

    def _compare(self) -> None:
        while self._own and (first := self._board.posted(0, self._own[0][0])) is not None:
            step, own = self._own.popleft()
            if own != first:
                raise RuntimeError(self._difference(step, own, first))
            self.compared += 1

    def explain(self) -> None:
        """After a fault: raises RuntimeError if it has such a cause."""
        end = time.monotonic() + _EXPLAIN_S
        while self._own and time.monotonic() < end:
            if self._board.posted(0, self._own[0][0]) is None:
                time.sleep(0.001)
            else:
                self._compare()

    def _read(self, posted: bytes) -> dict[str, int]:
        try:
            return msgspec.msgpack.decode(posted, type=dict[str, int])
        except msgspec.MsgspecError as error:
            raise self._board.unreadable(f"no counters but {posted[:16]!r}: {error}") from None

    def _difference(self, step: int, own: bytes, first: bytes) -> str:
        ours, theirs = self._read(own), self._read(first)
        differing = [
            f"{name} is {ours.get(name)}, at rank 0 {theirs.get(name)}"
            for name in {**theirs, **ours}
            if ours.get(name) != theirs.get(name)
        ]
        return (
            f"KV storage of engine {self._instance}: rank {self._board.rank} differs from rank 0 "
            f"behind step {step}: {'; '.join(differing)}"
        )
