"""A rank's tensors, and the memory behind them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvcached_core.budget import (
    Budget,
    Grant,
    Rank,
    Segment,
    create_segment,
    default_directory,
    remove_segment,
)
from kvcached_core.config import Settings
from kvcached_core.engines.sglang.device import RankDevice
from kvcached_core.engines.sglang.geometry import Geometry, blocks_per_page, slack_bytes
from kvcached_core.engines.sglang.room import Room, floor_bytes, longest_request
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.vmm import Arena

_DRAIN_MS = 30_000
_TERMS_MS = 5000
_RETRY_MS = 50


@dataclass(frozen=True)
class _Buffer:
    owner: int
    arena: Arena
    row_bytes: int
    tokens_per_row: int
    rows: int

    def block_bytes(self, block_tokens: int) -> int:
        return self.row_bytes * block_tokens // self.tokens_per_row


class Memory:
    """Tensors have addresses only until `start`, which maps the first page of each."""

    def __init__(self, settings: Settings, device: RankDevice) -> None:
        self.settings = settings
        self.device = device
        given = settings.budget_dir
        self.directory = default_directory() if given is None else Path(given)
        self.budget: Budget = device.open_budget(self.directory)
        self.room = Room(self.budget.capacity(), settings.headroom, settings.limit)
        self.driver = device.make_driver()
        self._buffers: list[_Buffer] = []
        self._rank: Rank | None = None
        self._row = -1
        self._claim = 0

    @property
    def page_size(self) -> int:
        given = self.settings.page_size
        return self.device.page_size if given is None else given

    @property
    def reserved_bytes(self) -> int:
        return sum(buffer.arena.size for buffer in self._buffers)

    @property
    def rank(self) -> Rank:
        assert self._rank is not None
        return self._rank

    def new_tensor(
        self, owner: Any, shape: Sequence[int], dtype: torch.dtype, device: str, tokens_per_row: int
    ) -> torch.Tensor:
        """Addresses for one tensor of `owner`; zeros where there is memory."""
        if self._rank is not None:
            raise RuntimeError(
                f"{type(owner).__name__} asks for a KV tensor behind the pool that has its "
                "allocator: only one pool is served"
            )
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        slack = slack_bytes(
            row_bytes * (owner.page_size // tokens_per_row), self.page_size, self.device.granularity
        )
        size = shape[0] * row_bytes
        arena = Arena.reserve(self.driver, size + slack)
        tensor = torch.from_dlpack(arena.tensor(0, size)).view(dtype).view(*shape)
        if tensor.device.type != torch.device(device).type:
            raise RuntimeError(f"a KV tensor lies on {tensor.device}, the pool is on {device}")
        self._buffers.append(_Buffer(id(owner), arena, row_bytes, tokens_per_row, shape[0]))
        return tensor

    def geometry(self, owner: Any, num_blocks: int, block_tokens: int) -> Geometry:
        """The pages of the pool `owner`, which must be what all tensors belong to."""
        if not self._buffers or any(buffer.owner != id(owner) for buffer in self._buffers):
            raise RuntimeError(
                f"--kv-storage-backend=kvcached: the KV tensors of {type(owner).__name__} are not "
                "all from it; use --kv-storage-backend=static"
            )
        sizes = [buffer.block_bytes(block_tokens) for buffer in self._buffers]
        room = [
            buffer.arena.size - num_blocks * size
            for buffer, size in zip(self._buffers, sizes, strict=True)
        ]
        granularity = self.device.granularity
        per_page = blocks_per_page(sizes, self.page_size, granularity, room)
        return Geometry(block_tokens, num_blocks, per_page, tuple(sizes), granularity)

    def start(self, geometry: Geometry, request: int) -> StoragePlan:
        """Joins the budget, with a floor that holds one request of `request` tokens unless the
        settings give another, and maps page 0 of all tensors. Raises ValueError where no request
        fits, BudgetError where the floor does not."""
        settings = self.settings
        longest = longest_request(geometry, self.room, request)
        assert settings.name is not None  # check_server_args has fixed it
        plan = StoragePlan(
            settings=settings,
            instance=settings.name,
            rank=0,
            num_ranks=1,
            device=self.device.key,
            budget_dir=self.directory,
            capacity=self.room.capacity,
            segment=create_segment(self.directory, settings.name, geometry.num_pages, 1),
            num_blocks=geometry.num_pages,
            blocks_per_page=1,
            block_bytes=geometry.extent_bytes,
            floor=floor_bytes(settings.floor, geometry, self.room, longest),
            limit=self.room.limit_bytes,
            granularity=geometry.granularity,
        )
        try:
            self._join(plan)
        except BaseException:
            remove_segment(plan.segment)
            raise
        self._plan = plan
        return plan

    def _join(self, plan: StoragePlan) -> None:
        self._claim = self.device.workspace_bytes()
        weight = plan.settings.weight
        row = self.budget.join(plan.instance, 0, plan.limit, plan.floor, self._claim, weight)
        arenas = [buffer.arena for buffer in self._buffers]
        extents = list(zip(arenas, plan.block_bytes, strict=True))
        segment = Segment.open(str(plan.segment))
        try:
            self._rank = Rank(segment, 0, self.budget, plan.device, row, self.driver, extents)
        except BaseException:
            self.budget.leave(row)
            raise
        self._row = row

    def hold_workspace(self) -> None:
        """Takes what was claimed beside the cache; then the device itself shows that it is gone."""
        self.device.hold_workspace()
        if self._claim:
            self._claim = 0
            self.set_floor(self._plan.floor, _TERMS_MS)

    def retire(self, pages: Sequence[int], epoch: int, streams: Sequence[int]) -> None:
        """Lets go of pages behind all that is queued now on these streams."""
        fences = [self.driver.fence(stream) for stream in dict.fromkeys(streams)]
        self.rank.retire(pages, epoch, fences)

    def drain(self) -> None:
        if not self.rank.drain(_DRAIN_MS):
            raise RuntimeError(
                f"KV storage of engine {self._plan.instance}: pages were not released within "
                f"{_DRAIN_MS} ms"
            )

    def set_floor(self, floor: int, deadline_ms: int = _RETRY_MS) -> bool:
        """Whether the floor is that now."""
        limit = self._plan.limit
        grant = self.budget.set_terms(self._row, limit, floor, self._claim, deadline_ms)
        return grant == Grant.GRANTED

    def close(self) -> None:
        """Gives all memory back."""
        if self._rank is not None:
            self._rank.close()

    def abandon(self) -> None:
        """The process ends and the device must not be called: nothing is ever destroyed."""
        for held in (self._rank, self.driver, *self._buffers):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
