"""A slow, obvious ledger: dictionaries, sorting, and nothing kept that can be counted."""

from __future__ import annotations


class Model:
    """What kvcached_core.pool.Ledger must do; arguments are taken to be legal."""

    def __init__(self, num_blocks: int, blocks_per_page: int) -> None:
        self.per_page = blocks_per_page
        self.blocks = dict.fromkeys(range(num_blocks), "free")
        self.blocks[0] = "null"
        self.pages = {b // blocks_per_page: "virtual" for b in self.blocks}
        self.pages[0] = "owned"
        self.lru: list[int] = []  # the least recently used first
        self.to_tell: set[int] = set()
        self.told: set[int] = set()

    # ---- what can be counted

    def members(self, page: int, state: str) -> list[int]:
        first = page * self.per_page
        ids = range(first, min(first + self.per_page, len(self.blocks)))
        return [b for b in ids if self.blocks[b] == state]

    def in_state(self, state: str) -> list[int]:
        """Blocks in this state, the free ones only where a page is owned."""
        owned = {p for p, s in self.pages.items() if s == "owned"}
        return [b for b, s in self.blocks.items() if s == state and b // self.per_page in owned]

    def pages_in(self, state: str) -> list[int]:
        return [p for p, s in self.pages.items() if s == state]

    def unused_pages(self) -> list[int]:
        """Owned pages without a used block, the null page left out."""
        return [p for p in self.pages_in("owned") if p != 0 and not self.members(p, "used")]

    def empty_pages(self) -> list[int]:
        return [p for p in self.unused_pages() if not self.members(p, "cached")]

    def cached_only_pages(self) -> list[int]:
        return [p for p in self.unused_pages() if self.members(p, "cached")]

    # ---- blocks

    def best_fit(self) -> int:
        """The free block to hand out next: pages that cannot be given back come first, empty ones
        last; then of the page with the fewest, the lowest."""

        def cost(page: int) -> tuple[int, int, int]:
            if page in self.empty_pages():
                return 2, 0, page
            return int(page in self.unused_pages()), len(self.members(page, "free")), page

        with_room = [p for p in self.pages_in("owned") if self.members(p, "free")]
        return min(self.members(min(with_room, key=cost), "free"))

    def pop(self, n: int) -> list[int]:
        out: list[int] = []
        while n - len(out) >= self.per_page and (empty := self.empty_pages()):
            out += self.members(min(empty), "free")
            for block in self.members(min(empty), "free"):
                self.take(block)
        while len(out) < n:
            out.append(self.best_fit() if self.in_state("free") else self.lru[0])
            self.take(out[-1])
        return out

    def take(self, block: int) -> None:
        if self.blocks[block] == "cached":
            self.lru.remove(block)
        self.blocks[block] = "used"
        page = block // self.per_page
        if page not in self.told:
            self.to_tell.add(page)

    def push(self, ids: list[int], state: str) -> None:
        for block in ids:
            self.blocks[block] = state
            if state == "cached":
                self.lru.append(block)

    def uncache(self, ids: list[int]) -> None:
        for block in ids:
            if self.blocks[block] == "cached":
                self.blocks[block] = "free"
                self.lru.remove(block)

    def take_first_used(self) -> list[int]:
        out = sorted(self.to_tell)
        self.told |= self.to_tell
        self.to_tell.clear()
        return out

    def victims(self, n: int) -> list[int]:
        def cost(page: int) -> tuple[int, int]:
            cached = self.members(page, "cached")
            return len(cached), max(self.lru.index(b) for b in cached)

        pages = sorted(self.cached_only_pages(), key=cost)[:n]
        return [b for p in pages for b in self.members(p, "cached")]

    def victims_over_bound(self, pages: int) -> list[int]:
        if pages == 0:
            return list(self.lru)
        return self.victims(max(0, len(self.cached_only_pages()) - pages))

    # ---- pages

    def move(self, pages: list[int], state: str) -> None:
        for page in pages:
            self.pages[page] = state

    def plan_growth(self, n: int) -> list[int]:
        pages = sorted(self.pages_in("virtual"))[:n]
        self.move(pages, "preparing")
        return pages

    def retire_empty(self, n: int) -> list[int]:
        pages = sorted(self.empty_pages(), reverse=True)[:n]
        self.move(pages, "retiring")
        self.to_tell -= set(pages)
        self.told -= set(pages)
        return pages
