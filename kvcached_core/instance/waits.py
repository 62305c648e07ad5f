"""Bounded waiting."""

from __future__ import annotations

import time


class Deadline:
    """A moment some milliseconds from now."""

    def __init__(self, milliseconds: int) -> None:
        self._end = time.monotonic() + milliseconds / 1000

    def left_ms(self) -> int:
        """Whole milliseconds left, at least 1 before the deadline, 0 behind it."""
        left = self._end - time.monotonic()
        return max(1, int(left * 1000)) if left > 0 else 0
