"""Which key an engine that has no room is refused for, and by which numbers."""

from __future__ import annotations

from typing import Any

import pytest

from kvcached_core.engines.vllm.geometry import Geometry
from kvcached_core.engines.vllm.room import Need, Room, check_room

pytestmark = [pytest.mark.engine]

KIB = 1 << 10
# 3 pages of 48 KiB; in pages of 12 KiB the same takes 9.
NEED = Need(size=144 * KIB, page=48 * KIB, least_size=108 * KIB, least_page_size=12 * KIB)


def refusal(need: Need = NEED, **room: int) -> str:
    with pytest.raises(ValueError) as error:
        check_room(need, Room(**room), 128)
    text = str(error.value)
    assert text.startswith("--kv-storage-config: one request of max_model_len 128 needs 144KiB")
    assert "(3 whole pages of 48KiB, null block included)" in text
    assert text.endswith(", or lower --max-model-len.")
    return text


@pytest.mark.parametrize(
    "room",
    [
        {"capacity": 144 * KIB},
        {"capacity": 200 * KIB, "headroom": 56 * KIB},
        {"capacity": 200 * KIB, "limit": 144 * KIB},
        {"capacity": 200 * KIB, "kv_cache_memory": 144 * KIB},
    ],
)
def test_what_just_fits_is_let_in(room: dict[str, int]) -> None:
    check_room(NEED, Room(**room), 128)


@pytest.mark.parametrize(
    ("room", "fault", "todo"),
    [
        (
            {"capacity": 100 * KIB, "given_capacity": 100 * KIB},
            "room for 100KiB: capacity is 100KiB.",
            "Raise capacity to 144KiB or more",
        ),
        (
            {"capacity": 100 * KIB, "given_capacity": 100 * KIB, "headroom": 20 * KIB},
            "room for 80KiB: capacity is 100KiB, of which headroom keeps 20KiB free.",
            "Raise capacity to 164KiB or more",
        ),
        (
            {"capacity": 160 * KIB, "given_capacity": 160 * KIB, "headroom": 60 * KIB},
            "room for 100KiB: headroom keeps 60KiB of capacity 160KiB free.",
            "Lower headroom to 16KiB or less, or raise capacity to 204KiB or more",
        ),
        (
            {"capacity": 1024 * KIB, "limit": 100 * KIB},
            "room for 100KiB: limit is 100KiB.",
            "Raise limit to 144KiB or more",
        ),
        (
            {"capacity": 1024 * KIB, "kv_cache_memory": 100 * KIB},
            "room for 100KiB: --kv-cache-memory-bytes (or VLLM_CPU_KVCACHE_SPACE) is 100KiB.",
            "Raise --kv-cache-memory-bytes (or VLLM_CPU_KVCACHE_SPACE) to 147456 bytes or more",
        ),
    ],
)
def test_the_one_at_fault_is_named(room: dict[str, int], fault: str, todo: str) -> None:
    text = refusal(**room)
    assert fault in text and todo in text
    names = ("headroom", "limit", "capacity", "page_size", "--kv-cache-memory-bytes")
    for name in names:
        assert (name in text) == (name in fault + todo), text


@pytest.mark.parametrize("given", [None, 300 * KIB])
def test_a_capacity_that_is_not_the_settings_cannot_be_raised_there(given: int | None) -> None:
    text = refusal(capacity=100 * KIB, **({} if given is None else {"given_capacity": given}))
    assert "capacity is 100KiB (what this machine had free" in text
    assert "Make 144KiB of memory free" in text and "raise capacity" not in text


def test_all_at_fault_are_named_at_once() -> None:
    text = refusal(
        capacity=100 * KIB, given_capacity=100 * KIB, limit=90 * KIB, kv_cache_memory=95 * KIB
    )
    assert "room for 90KiB: limit is 90KiB; and --kv-cache-memory-bytes" in text
    assert "; and capacity is 100KiB. Raise limit to 144KiB or more, and raise --kv-" in text


@pytest.mark.parametrize("key", ["capacity", "limit", "kv_cache_memory"])
@pytest.mark.parametrize("size", [143, 108])
def test_the_page_size_is_at_fault_where_smaller_pages_would_fit(key: str, size: int) -> None:
    text = refusal(**{"capacity": 1024 * KIB, key: size * KIB})
    assert (
        f"room for {size}KiB: page_size is at fault, with 12KiB the request would need 108KiB. "
        "Lower page_size to 12KiB, or lower --max-model-len."
    ) in text
    assert "page_size" not in refusal(**{"capacity": 1024 * KIB, key: 108 * KIB - 1})


def geometry(**other: Any) -> Geometry:
    given = {
        "block_bytes": ((4 * KIB, 8 * KIB), (4 * KIB,)),
        "request_blocks": 8,
        "page_size": 48 * KIB,
        "granularity": 4 * KIB,
    }
    return Geometry(**{**given, **other})


def test_the_need_counts_whole_pages_and_the_null_block() -> None:
    assert geometry().request_pages == 3
    assert geometry().need(0) == NEED
    assert geometry().need(1) == Need(48 * KIB, 16 * KIB, 36 * KIB, 12 * KIB)
    assert geometry(request_blocks=7).request_pages == 2


def test_pages_that_share_granules_count_all_that_they_can_touch() -> None:
    # Pages of 20 KiB touch up to two granules of 16 KiB, pages of 10 KiB as many: nothing is saved.
    need = geometry(block_bytes=((10 * KIB,),), page_size=20 * KIB, granularity=16 * KIB).need(0)
    assert (need.size, need.page) == (5 * 32 * KIB, 32 * KIB)
    assert (need.least_size, need.least_page_size) == (5 * 32 * KIB, 20 * KIB)


def test_smaller_pages_are_advised_only_where_they_need_less() -> None:
    # With granules of 64 KiB, smaller pages of shared granules would need more, not less.
    coarse = geometry(block_bytes=((12 * KIB,),), page_size=192 * KIB, granularity=64 * KIB)
    need = coarse.need(0)
    assert (need.size, need.page) == (192 * KIB, 192 * KIB)
    assert (need.least_size, need.least_page_size) == (192 * KIB, 192 * KIB)
