"""What an idle scheduler sleeps on, and a mark for one that spins."""

from __future__ import annotations

import contextlib
import os


class Wake:
    """`ring` may be called from any thread; the rest is the scheduler's."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.rung = True

    def ring(self) -> None:
        self.rung = True
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.fd, 1)

    def take(self) -> None:
        """Empties the descriptor."""
        if self.rung:
            self.rung = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.fd)
