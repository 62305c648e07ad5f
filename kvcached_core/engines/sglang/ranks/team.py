"""The ranks of an engine at its start, when all of them are at the same point anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch


class _Said(msgspec.Struct, frozen=True):
    body: bytes = b""
    error: str = ""


class Team:
    """One rank alone."""

    rank = 0
    size = 1

    def _gather(self, mine: bytes) -> list[bytes]:
        return [mine]

    def share(self, work: Callable[[], bytes]) -> list[bytes]:
        """Each does its `work`; what came of it at each, by rank. What one raises, all do: the
        others a RuntimeError that names the rank."""
        failed: Exception | None = None
        try:
            said = _Said(work())
        except Exception as error:
            failed, said = error, _Said(error=str(error) or repr(error))
        heard: list[_Said] = [
            msgspec.msgpack.decode(each, type=_Said)
            for each in self._gather(msgspec.msgpack.encode(said))
        ]
        if failed is not None:
            raise failed
        for rank, each in enumerate(heard):
            if each.error:
                raise RuntimeError(f"KV storage: rank {rank} of this engine failed: {each.error}")
        return [each.body for each in heard]

    def lead(self, work: Callable[[], bytes]) -> bytes:
        """What came of `work` at the first rank, which alone does it. Raises as `share`."""
        return self.share(work if self.rank == 0 else bytes)[0]


class GroupTeam(Team):
    """The members of one of torch's process groups, over the CPU."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)

    def _gather(self, mine: bytes) -> list[bytes]:
        length = torch.tensor([len(mine)])
        lengths = [torch.zeros_like(length) for _ in range(self.size)]
        torch.distributed.all_gather(lengths, length, group=self._group)
        most = max(int(each) for each in lengths)
        padded = torch.frombuffer(bytearray(mine.ljust(most, b"\0")), dtype=torch.uint8)
        found = [torch.zeros_like(padded) for _ in range(self.size)]
        torch.distributed.all_gather(found, padded, group=self._group)
        return [
            bytes(each.tolist())[: int(size)] for each, size in zip(found, lengths, strict=True)
        ]


def team_of(group: Any) -> Team:
    """Of a process group of the CPU, or none."""
    alone = group is None or torch.distributed.get_world_size(group) == 1
    return Team() if alone else GroupTeam(group)
