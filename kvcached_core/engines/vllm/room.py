"""Whether one request of the greatest length fits, and what is at fault if it does not."""

from __future__ import annotations

from dataclasses import dataclass

from kvcached_core.config import format_size
from kvcached_core.instance import room as instance


@dataclass(frozen=True)
class Room(instance.Room):
    """With what vLLM's own options say."""

    kv_cache_memory: int | None = None
    """--kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE."""
    given_capacity: int | None = None
    """What the settings ask for; the record's may be less, or another engine's."""

    @property
    def limit_bytes(self) -> int:
        """The least of `limit`, vLLM's option, the capacity."""
        least = super().limit_bytes
        return least if self.kv_cache_memory is None else min(least, self.kv_cache_memory)


@dataclass(frozen=True)
class Need:
    """Bytes of one request of the greatest length with the null block, in whole pages."""

    size: int
    page: int
    least_size: int
    """The least that smaller pages would make of it."""
    least_page_size: int
    """The setting that would."""


def check_room(need: Need, room: Room, max_model_len: int) -> None:
    """Raises ValueError, naming every key at fault with what it gives and what is needed."""
    if need.size <= room.size:
        return
    if need.least_size <= room.size:
        causes = [_page_size(need)]
    else:
        causes = list(filter(None, (_limit(need, room), _option(need, room), _device(need, room))))
    what = "; and ".join(what for what, _ in causes)
    todo = ", and ".join(todo for _, todo in causes)
    raise ValueError(
        f"--kv-storage-config: one request of max_model_len {max_model_len} needs "
        f"{format_size(need.size)} of KV cache ({need.size // need.page} whole pages of "
        f"{format_size(need.page)}, null block included); there is room for "
        f"{format_size(room.size)}: {what}. {todo[0].upper()}{todo[1:]}, or lower --max-model-len."
    )


_Cause = tuple[str, str]  # what is at fault, and what to do


def _page_size(need: Need) -> _Cause:
    return (
        f"page_size is at fault, with {format_size(need.least_page_size)} the request would need "
        f"{format_size(need.least_size)}",
        f"lower page_size to {format_size(need.least_page_size)}",
    )


def _limit(need: Need, room: Room) -> _Cause | None:
    if room.limit is None or room.limit >= need.size:
        return None
    size = format_size(need.size)
    return f"limit is {format_size(room.limit)}", f"raise limit to {size} or more"


def _option(need: Need, room: Room) -> _Cause | None:
    if room.kv_cache_memory is None or room.kv_cache_memory >= need.size:
        return None
    option = "--kv-cache-memory-bytes (or VLLM_CPU_KVCACHE_SPACE)"
    return (
        f"{option} is {format_size(room.kv_cache_memory)}",
        f"raise {option} to {need.size} bytes or more",
    )


def _device(need: Need, room: Room) -> _Cause | None:
    """The capacity, or the headroom where without it there would be enough."""
    if room.capacity - room.headroom >= need.size:
        return None
    capacity, whole = format_size(room.capacity), format_size(need.size + room.headroom)
    if room.capacity >= need.size:
        return (
            f"headroom keeps {format_size(room.headroom)} of capacity {capacity} free",
            f"lower headroom to {format_size(room.capacity - need.size)} or less, or raise "
            f"capacity to {whole} or more",
        )
    kept = f", of which headroom keeps {format_size(room.headroom)} free" if room.headroom else ""
    if room.given_capacity == room.capacity:
        return f"capacity is {capacity}{kept}", f"raise capacity to {whole} or more"
    return (
        f"capacity is {capacity}{kept} (what this machine had free, or the first engine of the "
        "budget named)",
        f"make {whole} of memory free before the budget's first engine starts",
    )
