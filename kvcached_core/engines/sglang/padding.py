"""Memory under the slots of padding, from the moment a tensor exists."""

from __future__ import annotations

from kvcached_core.vmm import Arena, Driver


class Padding:
    """Pools write to slot 0 while they are made, when it is not known yet how large a page is. So
    the first block of each tensor has memory of its own until page 0 comes in its place; it goes
    before the budget is joined, and is in no account."""

    def __init__(self, driver: Driver, granularity: int) -> None:
        self._driver = driver
        self._granularity = granularity
        self._held: list[tuple[Arena, int]] = []

    def add(self, arena: Arena, offset: int, size: int) -> None:
        """Zeros for `size` bytes from `offset` on, and for what else their granules hold. Raises
        DriverError."""
        granule = self._granularity
        first = offset // granule * granule
        handle = self._driver.create(-(-(offset + size - first) // granule) * granule)
        try:
            arena.map(first, handle)
        except BaseException:
            self._driver.release(handle)
            raise
        self._held.append((arena, first))
        self._driver.finish()

    def end(self) -> None:
        """Gives it back; nothing may be at work on it."""
        held, self._held = self._held, []
        for arena, offset in held:
            self._driver.release(arena.unmap(offset))
