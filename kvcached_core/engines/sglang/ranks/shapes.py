"""What the ranks of an engine have, each its own: one number of blocks a page for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from kvcached_core.config import Settings
from kvcached_core.engines.sglang.geometry import Geometry, Pages
from kvcached_core.engines.sglang.ranks.team import Team
from kvcached_core.instance.plan import Share, page_memory
from kvcached_core.instance.room import Room, floor_bytes


class Shape(msgspec.Struct, frozen=True):
    """Of one rank. Bytes, where not said otherwise."""

    block_bytes: tuple[int, ...]
    """In each of its tensors."""
    num_blocks: int
    blocks_per_page: int
    granularity: int
    device: str
    """Key of its budget's record."""
    capacity: int

    @property
    def extent_bytes(self) -> tuple[int, ...]:
        return tuple(self.blocks_per_page * size for size in self.block_bytes)

    @property
    def page_bytes(self) -> int:
        return page_memory(self.extent_bytes, self.granularity)


@dataclass(frozen=True)
class Shapes:
    """Of all ranks, by rank, with the same blocks a page."""

    of: tuple[Shape, ...]
    settings: Settings

    def room(self, rank: int) -> Room:
        return Room(self.of[rank].capacity, self.settings.headroom, self.settings.limit)

    @property
    def most_pages(self) -> int:
        """That every rank can have when nobody else has any; ranks of one device share it."""
        pages, prices = [], dict[str, int]()
        for rank, shape in enumerate(self.of):
            pages.append(self.room(rank).size // shape.page_bytes)
            prices[shape.device] = prices.get(shape.device, 0) + shape.page_bytes
        for shape in self.of:
            size = shape.capacity - self.settings.headroom
            pages.append(size // prices[shape.device])
        return min(pages)

    def shares(self, need: int) -> tuple[Share, ...]:
        """Where one request needs so many pages."""
        return tuple(self._share(rank, need) for rank in range(len(self.of)))

    def _share(self, rank: int, need: int) -> Share:
        shape, limit = self.of[rank], self.room(rank).limit_bytes
        floor = floor_bytes(self.settings.floor, need, shape.page_bytes, limit)
        return Share(shape.device, shape.page_bytes, sum(shape.extent_bytes), floor, limit)


def agree_on_pages(
    team: Team, pages: Pages, settings: Settings, device: str, capacity: int
) -> tuple[Pages, Shapes]:
    """This rank's pages, with as few blocks each as the rank with the largest ones has, and all
    ranks' shapes. Raises RuntimeError where their slots differ."""
    shape = _shape_of(pages, device, capacity)
    said = team.share(lambda: msgspec.msgpack.encode(shape))
    found: list[Shape] = [msgspec.msgpack.decode(each, type=Shape) for each in said]
    slots = [each.num_blocks for each in found]
    if len(set(slots)) > 1:
        raise RuntimeError(f"KV storage: the ranks of this engine have {slots} slots each")
    least = min(each.blocks_per_page for each in found)
    shapes = tuple(msgspec.structs.replace(each, blocks_per_page=least) for each in found)
    if isinstance(pages, Geometry):
        pages = replace(pages, blocks_per_page=least)
    return pages, Shapes(shapes, settings)


def _shape_of(pages: Pages, device: str, capacity: int) -> Shape:
    """Pools that share one memory have pages of one size: there a block is such a page."""
    if isinstance(pages, Geometry):
        sizes, blocks, per_page = pages.block_bytes, pages.num_blocks, pages.blocks_per_page
    else:
        sizes, blocks, per_page = pages.extent_bytes, pages.num_pages, 1
    return Shape(sizes, blocks, per_page, pages.granularity, device, capacity)
