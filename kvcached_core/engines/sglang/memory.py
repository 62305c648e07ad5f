"""A rank's tensors, and the memory behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from kvcached_core.budget import (
    Budget,
    Grant,
    Rank,
    Segment,
    default_directory,
    remove_segment,
)
from kvcached_core.config import Settings
from kvcached_core.engines.sglang.device import RankDevice
from kvcached_core.engines.sglang.geometry import Pages
from kvcached_core.engines.sglang.ranks.board import Board
from kvcached_core.engines.sglang.ranks.place import Place
from kvcached_core.engines.sglang.ranks.shapes import Shapes, agree_on_pages
from kvcached_core.engines.sglang.ranks.team import Team
from kvcached_core.engines.sglang.room import longest_request
from kvcached_core.engines.sglang.tensors import PoolTensors, Tensors
from kvcached_core.engines.sglang.windows import Windows, WindowTensors
from kvcached_core.instance.claim import Claim
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.room import Room
from kvcached_core.txn.transport import RankServer

_DRAIN_MS = 30_000
_TERMS_MS = 5000
_RETRY_MS = 50


class Memory:
    """Tensors have addresses, and memory for padding's slots, until `start`, which maps page 0."""

    def __init__(
        self,
        settings: Settings,
        device: RankDevice,
        *,
        block_major: bool,
        windows: Windows | None = None,
    ) -> None:
        """`windows`: what requests hold of them, where they have a pool of their own."""
        self.team = Team()
        """Of this rank and the others: set before pages are known."""
        self.board: Board | None = None
        """Of several ranks, once started."""
        self.most_pages = 0
        """That one request can have; known once started."""
        self.settings = settings
        self.device = device
        folder = settings.budget_dir
        self.directory = default_directory() if folder is None else Path(folder)
        self.budget: Budget = device.open_budget(self.directory)
        self.room = Room(self.budget.capacity(), settings.headroom, settings.limit)
        self.planned_bytes = self.room.limit_bytes
        """Of all slots, with memory or without."""
        self.driver = device.make_driver()
        given = settings.page_size
        page_size = device.page_size if given is None else given
        granularity = device.granularity
        self.tensors: Tensors
        if windows is None:
            self.tensors = PoolTensors(self.driver, page_size, granularity, block_major=block_major)
        else:
            # Slots for more than there is: neither pool is to be short of them when it needs more
            # of the memory than SGLang thinks.
            self.planned_bytes *= 2
            self.tensors = WindowTensors(
                self.driver, page_size, granularity, self.planned_bytes, windows
            )
        self._rank: Rank | None = None
        self._server: RankServer | None = None
        self._row = -1
        self._floor = 0
        self._claim = Claim(0)

    @property
    def rank(self) -> Rank:
        assert self._rank is not None
        return self._rank

    def agree_on_budget(self) -> int:
        """Bytes to plan slots for, the same at all ranks."""
        said = self.team.share(lambda: str(self.planned_bytes).encode())
        return min(int(each) for each in said)

    def agree_on_pages(self, pages: Pages) -> tuple[Pages, Shapes]:
        """These pages, as all ranks have them, and what each has. Raises RuntimeError."""
        key, capacity = self.device.key, self.room.capacity
        return agree_on_pages(self.team, pages, self.settings, key, capacity)

    def start(
        self, pages: Pages, shapes: Shapes, request: int
    ) -> tuple[StoragePlan, tuple[int, ...]]:
        """Joins the budget, with a floor that holds one request of `request` tokens unless the
        settings give another, and maps page 0 of all tensors; all ranks do. The plan, and the pages
        of each pool that such a request needs. Raises ValueError where no request fits, BudgetError
        where the floor does not, BoardError where the ranks' board is at fault, RuntimeError where
        another rank failed."""
        team, most = self.team, shapes.most_pages
        self.most_pages = most
        need = pages.pages_of_request(longest_request(pages, self.room, request, most))
        shares = shapes.shares(sum(need))
        place = Place(team, self.directory, self._name, pages.num_pages)
        plan = StoragePlan(
            settings=self.settings,
            instance=self._name,
            rank=team.rank,
            num_ranks=team.size,
            device=self.device.key,
            budget_dir=self.directory,
            capacity=self.room.capacity,
            segment=place.segment,
            num_blocks=pages.num_pages,
            blocks_per_page=1,
            block_bytes=pages.extent_bytes,
            floor=shares[team.rank].floor,
            limit=shares[team.rank].limit,
            granularity=pages.granularity,
            start=place.start,
            shares=shares,
        )
        try:
            team.share(lambda: self._join(plan, place))
            place.forget_board()
        except BaseException:
            self.close()
            remove_segment(plan.segment)
            raise
        self._plan = plan
        return plan, need

    @property
    def _name(self) -> str:
        assert self.settings.name is not None  # check_server_args has fixed it
        return self.settings.name

    def _join(self, plan: StoragePlan, place: Place) -> bytes:
        self._end_padding()
        self.board = place.board()
        self._floor, self._claim = plan.floor, Claim(self.device.workspace_bytes())
        claim, weight = self._claim.size, plan.settings.weight
        row = self.budget.join(plan.instance, plan.rank, plan.limit, plan.floor, claim, weight)
        extents = list(zip(self.tensors.arenas, plan.block_bytes, strict=True))
        segment = Segment.open(str(plan.segment))
        try:
            self._rank = Rank(
                segment, plan.rank, self.budget, plan.device, row, self.driver, extents
            )
        except BaseException:
            self.budget.leave(row)
            raise
        self._row = row
        if plan.start:
            self._server = place.listen(self._rank)
        return b""

    def _end_padding(self) -> None:
        """What is queued may write there; nobody needs what it wrote."""
        for stream in self.device.streams():
            self.driver.fence(stream).wait(_DRAIN_MS)
        self.tensors.padding.end()

    def lower_claim(self, *, now: bool = False) -> None:
        """Once a step: see Claim."""
        self._claim.lower(self.device.workspace_left, self._enter, now=now)

    def _enter(self, claim: int, deadline_ms: int) -> Grant:
        return self.budget.set_terms(self._row, self._plan.limit, self._floor, claim, deadline_ms)

    def retire(self, pages: Sequence[int], epoch: int, streams: Sequence[int]) -> None:
        """Lets go of pages behind all that is queued now on these streams."""
        fences = [self.driver.fence(stream) for stream in dict.fromkeys(streams)]
        # Of several ranks what transactions name goes, once this epoch's fences have passed.
        self.rank.retire(pages if self._server is None else (), epoch, fences)

    def drain(self) -> None:
        if not self.rank.drain(_DRAIN_MS):
            raise RuntimeError(
                f"KV storage of engine {self._plan.instance}: pages were not released within "
                f"{_DRAIN_MS} ms"
            )

    def sleep(self) -> None:
        """Neighbours may have the floor and what was claimed."""
        self._floor, self._claim = 0, Claim(0)
        self._enter(0, _TERMS_MS)

    def wake(self) -> bool:
        """Whether the floor could be had again, and the claim was entered with it."""
        self._floor, claim = self._plan.floor, Claim(self.device.workspace_left())
        if self._enter(claim.size, _RETRY_MS) != Grant.GRANTED:
            self._floor = 0
            return False
        self._claim = claim
        return True

    def close(self) -> None:
        """Gives all memory back."""
        if self._server is not None:
            self._server.close()
        if self._rank is not None:
            self._rank.close()

    def abandon(self) -> None:
        """The process ends and the device must not be called: nothing is ever destroyed."""
        for held in (self._rank, self.driver, *self.tensors.arenas):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
