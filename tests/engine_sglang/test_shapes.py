"""What several ranks have, put together: pages that all of them can pay for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("sglang_variables")]

KIB = 1024


class Team:
    """Rank 0, of several that say what they were told to."""

    rank = 0

    def __init__(self, *others: Any) -> None:
        self._others = [msgspec.msgpack.encode(other) for other in others]
        self.size = 1 + len(others)

    def share(self, work: Any) -> list[bytes]:
        return [work(), *self._others]


def settings(**given: Any) -> Any:
    from kvcached_core.config import parse_settings

    return parse_settings(given, "test")


def shape(**given: Any) -> Any:
    from kvcached_core.engines.sglang.ranks.shapes import Shape

    base = {"block_bytes": (KIB,) * 4, "num_blocks": 1001, "blocks_per_page": 16}
    base |= {"granularity": 4 * KIB, "device": "host:a", "capacity": 640 * KIB}
    return Shape(**{**base, **given})


def agreed(*others: Any, **given: Any) -> Any:
    from kvcached_core.engines.sglang.geometry import Geometry
    from kvcached_core.engines.sglang.ranks.shapes import agree_on_pages

    pages = Geometry(1, 1001, 16, (KIB,) * 4, 4 * KIB)
    return agree_on_pages(Team(*others), pages, settings(**given), "host:a", 640 * KIB)


def test_alone() -> None:
    pages, shapes = agreed()
    assert pages.blocks_per_page == 16
    assert shapes.most_pages == 10  # of 64 KiB
    (share,) = shapes.shares(3)
    assert (share.page_bytes, share.own_bytes, share.floor) == (64 * KIB, 64 * KIB, 192 * KIB)


def test_ranks_of_one_device_share_what_it_has() -> None:
    _, shapes = agreed(shape())
    assert shapes.most_pages == 5
    _, shapes = agreed(shape(device="host:b"))
    assert shapes.most_pages == 10
    _, shapes = agreed(shape(device="host:b"), limit=4 * 64 * KIB)
    assert shapes.most_pages == 4
    _, shapes = agreed(shape(), headroom=128 * KIB)
    assert shapes.most_pages == 4


def test_a_stage_with_fewer_layers_has_smaller_pages_of_the_same_tokens() -> None:
    pages, shapes = agreed(shape(block_bytes=(KIB,) * 2, blocks_per_page=32))
    assert pages.blocks_per_page == 16
    assert [share.page_bytes for share in shapes.shares(2)] == [64 * KIB, 32 * KIB]
    assert [share.floor for share in shapes.shares(2)] == [128 * KIB, 64 * KIB]
    assert shapes.most_pages == 640 // 96
    pages, shapes = agreed(shape(block_bytes=(KIB,) * 8, blocks_per_page=8))
    assert pages.blocks_per_page == 8
    assert pages.num_pages == 126
    # Eight rows of a KiB are two granules, so no page shares one.
    assert [share.page_bytes for share in shapes.shares(2)] == [32 * KIB, 64 * KIB]


def test_other_slots_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"the ranks of this engine have \[1001, 900\] slots"):
        agreed(shape(num_blocks=900))
