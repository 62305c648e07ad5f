"""Pages of any size in an arena over a driver that can fail, and what can be seen of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from kvcached_core.vmm import Arena, FaultyDriver, Granules, HostDriver, readable_bytes

from .subject import Subject, make_driver

G = HostDriver().granularity()
PAGES = 8


class Strip:
    """Pages in an arena, over a driver that can fail; ``inner`` is the one underneath."""

    kind: ClassVar[str] = "host"  # of the driver

    def __init__(self, page_bytes: int, pages: int = PAGES) -> None:
        self.inner = make_driver(self.kind, G)
        self.driver = FaultyDriver(self.inner)
        self.subject = Subject(self.driver)
        self.arena = Arena.reserve(self.driver, page_bytes * pages)
        self.pages = Granules(self.arena, page_bytes, pages)
        self.page_bytes = page_bytes

    def at(self, page: int) -> int:
        return self.arena.base + page * self.page_bytes

    def fill(self, page: int, value: int) -> None:
        self.subject.fill(self.at(page), self.page_bytes, value)

    def is_filled(self, page: int, value: int) -> bool:
        return self.subject.is_filled(self.at(page), self.page_bytes, value)

    def touched(self, pages: Iterable[int]) -> set[int]:
        """The granules under these pages."""
        found: set[int] = set()
        for page in pages:
            begin = page * self.page_bytes
            found.update(range(begin // G, (begin + self.page_bytes - 1) // G + 1))
        return found

    def readable(self) -> set[int]:
        starts = range(self.arena.size // G)
        return {i for i in starts if readable_bytes(self.arena.base + i * G, G) == G}

    def grow(self, *pages: int) -> None:
        for page in pages:
            self.pages.create(page)
            self.pages.map(page)

    def zeroed(self, mappings: int) -> int:
        """Calls that zero so many new mappings: none where new memory is zero as it comes."""
        return 0 if self.driver.creates_zeroed() else mappings

    def held(self) -> int:
        """Granules that are held, when all that know agree, which they must."""
        assert self.pages.created_bytes == self.inner.held_bytes()
        return self.pages.created_bytes // G
