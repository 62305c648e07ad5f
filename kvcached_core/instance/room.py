"""What one engine can have of its device's budget. Bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """What bounds the memory of one rank; None where nothing was given."""

    capacity: int
    """The budget's, as its record has it."""
    headroom: int = 0
    limit: int | None = None

    @property
    def limit_bytes(self) -> int:
        """What this engine may map at most."""
        return self.capacity if self.limit is None else min(self.limit, self.capacity)

    @property
    def size(self) -> int:
        """What it can have when nobody else has any."""
        return min(self.limit_bytes, self.capacity - self.headroom)


def floor_bytes(given: int | None, need: int, page_bytes: int, limit: int) -> int:
    """The floor in whole pages, so that what lies above it can be given back to the last byte: as
    given, or `need` pages."""
    pages = need if given is None else -(-given // page_bytes)
    return min(pages * page_bytes, limit)
