"""When a rank of several has given back all that its engine's transactions take from it."""

from __future__ import annotations

import time

from kvcached_core.budget import Segment
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.waits import Deadline

_LOOK_S = 0.001


class Release:
    """Made when the rank has its null page and nothing else."""

    def __init__(self, plan: StoragePlan) -> None:
        self._plan = plan
        self._segment = Segment.open(str(plan.segment))
        self._least = self._created()

    def wait(self, milliseconds: int) -> bool:
        """Until the rank has no more than its null page and what its driver keeps. False if it has
        at the deadline, or when the engine has failed."""
        deadline = Deadline(milliseconds)
        while not self._is_done():
            if self._segment.failure() or not deadline.left_ms():
                return False
            time.sleep(_LOOK_S)
        return True

    def _is_done(self) -> bool:
        more = self._created() - self._least
        return more <= 0 or more <= self._lost_pages() * self._plan.page_bytes

    def _lost_pages(self) -> int:
        return sum(map(self._segment.is_quarantined, range(self._plan.num_pages)))

    def _created(self) -> int:
        return int(self._segment.rank_info(self._plan.rank)["created_bytes"])
