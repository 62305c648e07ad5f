"""Pages of block ids: how many blocks, and how much memory one can need."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcached_core.instance.plan import choose_blocks_per_page, page_memory

pytestmark = [pytest.mark.engine]

KIB, MIB = 1 << 10, 1 << 20
HOST = 4 * KIB


@pytest.mark.parametrize(
    ("blocks", "page_size", "granularity", "expected"),
    [
        ([[64 * KIB]], 2 * MIB, HOST, 32),  # divides: nothing but page_size counts
        ([[64 * KIB] * 4], 2 * MIB, HOST, 8),
        ([[48 * KIB]], 2 * MIB, HOST, 43),
        ([[KIB]], 1, HOST, 4),  # a whole granule is less than the two that one block can touch
        ([[6 * KIB]], 1, HOST, 2),
        ([[64 * KIB]], 2 * MIB, 2 * MIB, 32),
        ([[384 * KIB]], 2 * MIB, 2 * MIB, 16),  # 6 MiB; 6 blocks can touch 4 MiB
        ([[1152 * KIB]], 2 * MIB, 2 * MIB, 2),  # 18 MiB would be whole; 2 blocks can touch 4 MiB
        ([[1152 * KIB]], 16 * MIB, 2 * MIB, 16),  # 18 MiB, of at most 18 MiB
        ([[64 * KIB] * 32], 2 * MIB, 2 * MIB, 32),  # one block of each layer can touch as much
        ([[1152 * KIB], [2 * MIB]], 2 * MIB, 2 * MIB, 1),  # one number for all workers
    ],
)
def test_whole_granules_as_long_as_they_are_cheap(
    blocks: list[list[int]], page_size: int, granularity: int, expected: int
) -> None:
    assert choose_blocks_per_page(blocks, page_size, granularity) == expected


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@given(st.lists(sizes, min_size=1, max_size=2), st.integers(1, 200), st.sampled_from([1, 4, 16]))
def test_a_page_fills_page_size_and_is_never_far_too_large(
    blocks: list[list[int]], page_size: int, granularity: int
) -> None:
    per_page = choose_blocks_per_page(blocks, page_size, granularity)
    largest = max(sum(sizes) for sizes in blocks)
    assert per_page * largest >= page_size
    smallest = math.ceil(page_size / largest)
    for sizes in blocks:
        small = page_memory([smallest * size for size in sizes], granularity)
        assert page_memory([per_page * size for size in sizes], granularity) <= 2 * small
    if per_page != smallest:
        assert all(per_page * size % granularity == 0 for sizes in blocks for size in sizes)


@given(st.integers(1, 70), st.sampled_from([1, 2, 8, 16]))
def test_the_memory_of_a_page_is_the_granules_it_can_touch(extent: int, granularity: int) -> None:
    touched = max(
        -(-(page + 1) * extent // granularity) - page * extent // granularity
        for page in range(granularity)
    )
    assert page_memory([extent], granularity) == touched * granularity
    assert page_memory([extent] * 3, granularity) == 3 * touched * granularity
