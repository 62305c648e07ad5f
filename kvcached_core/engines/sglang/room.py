"""What an engine cannot start without."""

from __future__ import annotations

from kvcached_core.config import format_size
from kvcached_core.engines.sglang.geometry import Pages
from kvcached_core.instance.room import Room

# Tokens of a request that the scheduler keeps from prompts, and a token of a prompt.
_LEAST_TOKENS = 5 + 1


def longest_request(pages: Pages, room: Room, wanted: int, most_pages: int | None = None) -> int:
    """Tokens of the longest request that is sure to fit alone, at most `wanted`. `most_pages`:
    where other ranks use the room too, or have less. Raises ValueError, with what is needed and
    what there is, where none fits."""
    page = pages.page_bytes
    most = room.size // page if most_pages is None else most_pages
    fits = min(wanted, pages.tokens_of_request(most))
    if fits >= max(1, min(_LEAST_TOKENS, wanted)):
        return fits
    size = room.size if most >= room.size // page else most * page
    need = sum(pages.pages_of_request(_LEAST_TOKENS)) * page
    raise ValueError(
        f"--kv-storage-config: the shortest request needs {format_size(need)} of KV cache "
        f"({need // page} whole pages of {format_size(page)}, padding's included); there is room "
        f"for {format_size(size)}: limit is {format_size(room.limit_bytes)}, capacity "
        f"{format_size(room.capacity)}, of which headroom keeps {format_size(room.headroom)} free. "
        "Raise limit or capacity, or lower page_size."
    )
