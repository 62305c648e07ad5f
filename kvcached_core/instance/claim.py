"""What a rank's process will yet take beside the cache, kept true in its row of the budget."""

from __future__ import annotations

from collections.abc import Callable

from kvcached_core.budget import Grant

_STEPS = 64
_DEADLINE_MS = 1  # a lock that is not had at once is tried for again


class Claim:
    """Torch's allocator takes memory when it first needs it and then keeps it. Until then nothing
    but the claim tells neighbours to leave it. All methods run in one thread, the rank's."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._step = 0

    def lower(
        self, left: Callable[[], int], enter: Callable[[int, int], Grant], *, now: bool = False
    ) -> None:
        """Called once a step: looks at what is left, often at first and then every _STEPS steps, or
        `now`. `enter(claim, deadline_ms)` writes the row's terms. A claim that is late is too high,
        so neighbours get too little rather than too much."""
        self._step += 1
        rare = self._step & (self._step - 1) if self._step < _STEPS else self._step % _STEPS
        if (rare and not now) or not self.size:
            return
        found = min(self.size, left())
        if found < self.size and enter(found, _DEADLINE_MS) == Grant.GRANTED:
            self.size = found
