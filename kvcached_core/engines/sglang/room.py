"""What one engine can have, and what it cannot start without."""

from __future__ import annotations

from dataclasses import dataclass

from kvcached_core.config import format_size
from kvcached_core.engines.sglang.geometry import Geometry


@dataclass(frozen=True)
class Room:
    """What bounds the memory of one rank. Bytes."""

    capacity: int
    """The budget's, as its record has it."""
    headroom: int
    limit: int | None

    @property
    def limit_bytes(self) -> int:
        """What this engine may map at most."""
        return self.capacity if self.limit is None else min(self.limit, self.capacity)

    @property
    def size(self) -> int:
        """What it can have when nobody else has any."""
        return min(self.limit_bytes, self.capacity - self.headroom)


def longest_request(geometry: Geometry, room: Room, wanted: int) -> int:
    """Tokens of the longest request that is sure to fit alone, at most `wanted`. Raises ValueError,
    with what is needed and what there is, where none fits."""
    page = geometry.page_bytes
    fits = min(wanted, geometry.tokens_of_request(room.size // page))
    if fits > 0:
        return fits
    need = geometry.pages_of_request(1) * page
    raise ValueError(
        f"--kv-storage-config: the shortest request needs {format_size(need)} of KV cache "
        f"({need // page} whole pages of {format_size(page)}, padding's included); there is room "
        f"for {format_size(room.size)}: limit is {format_size(room.limit_bytes)}, capacity "
        f"{format_size(room.capacity)}, of which headroom keeps {format_size(room.headroom)} free. "
        "Raise limit or capacity, or lower page_size."
    )


def floor_bytes(given: int | None, geometry: Geometry, room: Room, request: int) -> int:
    """The floor in whole pages: as given, or one request of `request` tokens."""
    page = geometry.page_bytes
    pages = geometry.pages_of_request(request) if given is None else -(-given // page)
    return min(pages * page, room.limit_bytes)
