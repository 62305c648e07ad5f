"""Wakes an idle engine when a neighbour needs what it holds, and gives back what the dead held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvcached_core.budget import Budget, BudgetError
from kvcached_core.instance.supply import Supply

# A wake that is lost, or a need that time alone brings up, is seen after this long.
_LOOK_MS = 200
# While a need stands, the engine is reminded no more often than this.
_REMIND_S = 0.01
# The memory of a killed engine is the others' within this long, plus one look.
_REAP_S = 0.5


class Watcher:
    """A daemon thread that waits on a device's record. It decides nothing; it only reaps the dead,
    since an engine that has no room does not ask for any, and asking is what reaps otherwise."""

    def __init__(
        self,
        budget: Budget,
        row: int,
        wakeup: Callable[[], None],
        is_asked: Callable[[], bool],
        look_again: Callable[[], bool],
        ring_ranks: Callable[[], None],
    ) -> None:
        """`is_asked` tells whether a neighbour waits for what the engine could give, `look_again`
        whether the engine fell asleep with growth on its way; `ring_ranks` makes the ranks tell
        the record what the engine could give."""
        self._budget = budget
        self._row = row
        self._wakeup = wakeup
        self._is_asked = is_asked
        self._look_again = look_again
        self._ring_ranks = ring_ranks
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kvcached-watcher", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        seen, reaped = 0, 0.0
        while not self._stopped.is_set():
            try:
                if time.monotonic() - reaped >= _REAP_S:
                    self._budget.reap()
                    reaped = time.monotonic()
                if self._budget.others_want(self._row):
                    self._ring_ranks()
                if self._is_asked() or self._look_again():
                    self._wakeup()
                    self._stopped.wait(_REMIND_S)
                seen = self._budget.wait_wanted(self._row, seen, _LOOK_MS)
            except BudgetError:
                return  # the rank has left: the engine is going down

    def stop(self) -> None:
        """Ends the thread, within _LOOK_MS. May be called twice."""
        self._stopped.set()
        self._thread.join(timeout=5)


class Watchers:
    """A Watcher for each device that the engine's ranks lie on."""

    def __init__(
        self, supply: Supply, wakeup: Callable[[], None], look_again: Callable[[], bool]
    ) -> None:
        self._watchers = [
            Watcher(budget, row, wakeup, supply.is_asked, look_again, supply.segment.ring_ranks)
            for budget, row in supply.budgets.firsts
        ]

    def stop(self) -> None:
        """Ends all. May be called twice."""
        for watcher in self._watchers:
            watcher.stop()
