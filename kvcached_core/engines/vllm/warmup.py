"""Memory for the steps of vLLM's warm-up, which come before there is a scheduler half.

Such steps name blocks from 1 on, as if somebody had handed them out: one or more for every request
that may ever run at once. They get pages within the engine's floor, which no neighbour can hold,
and ids beyond those are folded back into them: requests then share blocks, which harms nothing,
since nobody reads what they compute.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvcached_core.budget import Rank, Segment
from kvcached_core.config import format_size
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.waits import Deadline

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

_GROWTH_MS = 30_000
_LOOK_S = 0.1
_ORDER = 0  # no transaction's id
_SILENT = "the rank did not answer"


class WarmupPages:
    """Asks for one rank's pages, in the place of a scheduler half. Ranks need not get as many as
    each other: none of them sees what another makes of a block."""

    def __init__(self, plan: StoragePlan, rank: Rank) -> None:
        self._plan = plan
        self._rank = rank
        self.pages: list[int] = []
        """Taken so far, to be retired before a scheduler half begins."""
        self._blocks = 0  # that have memory, from block 0 on; 0: not asked for yet

    def serve(self, scheduler_output: SchedulerOutput) -> None:
        """Gives every block that the step names memory, by renaming it in place if need be.

        Raises RuntimeError if not even one block beside the null block can be had.
        """
        lists = list(_lists_of_ids(scheduler_output))
        highest = max((block for ids in lists for block in ids), default=0)
        if highest == 0:
            return
        if self._blocks == 0:
            self._take(highest)
        for ids in lists:
            ids[:] = [self._fold(block) for block in ids]

    def _fold(self, block: int) -> int:
        return 1 + (block - 1) % (self._blocks - 1) if block else 0

    def _take(self, highest: int) -> None:
        plan = self._plan
        per_page = plan.blocks_per_page
        least = 2 if per_page == 1 else 1  # page 0 is there, but the null block is nobody's
        most = min(max(plan.floor // plan.page_bytes, least), plan.num_pages)
        self.pages = self._grow(list(range(1, min(highest // per_page + 1, most))))
        self._blocks = min((1 + len(self.pages)) * per_page, plan.num_blocks)
        if self._blocks < 2:
            raise RuntimeError(
                f"KV storage of engine {plan.instance}: budget {plan.device} has no page of "
                f"{format_size(plan.page_bytes)} left to warm up with, and its floor of "
                f"{format_size(plan.floor)} keeps none: raise floor in --kv-storage-config, or "
                "make memory free there"
            )
        self._rank.make_ready(self.pages)

    def _grow(self, pages: list[int]) -> list[int]:
        """Those of them that the rank then owns, from the first on."""
        if not pages:
            return []
        grow = self._grow_alone if self._plan.start else self._grow_by_segment
        return grow(pages, Deadline(_GROWTH_MS))

    def _grow_by_segment(self, pages: list[int], deadline: Deadline) -> list[int]:
        # Its own view: the scheduler half opens another, which knows nothing of what is asked here.
        segment = Segment.open(str(self._plan.segment))
        segment.request(pages)
        owned: list[int] = []
        while True:
            seen = segment.progress()
            owned += segment.poll()[0]
            if not segment.outstanding():
                return owned
            left = deadline.left_ms()
            if failure := segment.failure() or ("" if left else _SILENT):
                raise self._failed(failure)
            segment.wait_progress(seen, left)

    def _grow_alone(self, pages: list[int], deadline: Deadline) -> list[int]:
        """Among several ranks each takes what it can: nobody but itself uses it."""
        owned = self._await("attempted", lambda: self._rank.take(_ORDER, pages), deadline)
        self._await("settled", lambda: self._rank.settle(_ORDER, owned, []), deadline)
        return owned

    def _await(self, kind: str, order: Callable[[], None], deadline: Deadline) -> list[int]:
        """Gives an order; the pages that are held when it was carried out."""
        segment = Segment.open(str(self._plan.segment))
        readable = self._rank.outcomes_fd()
        order()
        while True:
            select.select([readable], [], [], _LOOK_S)
            for found, _, held, _ in self._rank.take_outcomes():
                if found == kind:
                    return list(held)
            failure = segment.failure()
            if failure or not deadline.left_ms():
                raise self._failed(failure or _SILENT)

    def _failed(self, why: str) -> RuntimeError:
        return RuntimeError(f"KV storage of engine {self._plan.instance}: {why}")


def _lists_of_ids(scheduler_output: SchedulerOutput) -> Iterator[list[int]]:
    """Lists of block ids, one a request and group, as vLLM's runners will read them."""
    for request in scheduler_output.scheduled_new_reqs:
        yield from request.block_ids
    for groups in scheduler_output.scheduled_cached_reqs.new_block_ids:
        yield from groups or ()
