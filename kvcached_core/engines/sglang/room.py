"""What an engine cannot start without."""

from __future__ import annotations

from kvcached_core.config import format_size
from kvcached_core.engines.sglang.geometry import Pages
from kvcached_core.instance.room import Room

# Tokens of a request that the scheduler keeps from prompts, and a token of a prompt.
_LEAST_TOKENS = 5 + 1


def longest_request(pages: Pages, room: Room, wanted: int) -> int:
    """Tokens of the longest request that is sure to fit alone, at most `wanted`. Raises ValueError,
    with what is needed and what there is, where none fits."""
    page = pages.page_bytes
    fits = min(wanted, pages.tokens_of_request(room.size // page))
    if fits >= max(1, min(_LEAST_TOKENS, wanted)):
        return fits
    need = sum(pages.pages_of_request(_LEAST_TOKENS)) * page
    raise ValueError(
        f"--kv-storage-config: the shortest request needs {format_size(need)} of KV cache "
        f"({need // page} whole pages of {format_size(page)}, padding's included); there is room "
        f"for {format_size(room.size)}: limit is {format_size(room.limit_bytes)}, capacity "
        f"{format_size(room.capacity)}, of which headroom keeps {format_size(room.headroom)} free. "
        "Raise limit or capacity, or lower page_size."
    )
