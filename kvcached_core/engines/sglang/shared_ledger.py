"""One ledger over the pages of several pools that share one memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal

from kvcached_core.pool import Ledger

_PageState = Literal["virtual", "preparing", "owned", "retiring", "quarantined"]


class SharedLedger:
    """Ids of pages follow one another, those of the first of `placed` first; each pool's own ledger
    has them from 0. A pool's page 0 is padding's, and counts as used.

    Each pool has a share that is its own: `shares` pages, with which one request runs alone. A pool
    outgrows it only when every other has all of its share, so that none can take from another what
    that one cannot do without."""

    def __init__(
        self, ledgers: Sequence[Ledger], shares: Sequence[int], placed: Sequence[int]
    ) -> None:
        """`placed`: all pools, by their index, in the order of their ids."""
        self.ledgers = tuple(ledgers)
        self.shares = tuple(shares)
        self._placed = tuple(placed)
        sizes = (ledgers[pool].num_pages() for pool in placed[:-1])
        self._starts = tuple(accumulate(sizes, initial=0))
        self.first = tuple(self._starts[placed.index(pool)] for pool in range(len(ledgers)))
        self._lacking = [0] * len(self.ledgers)
        self._wanted = [0] * len(self.ledgers)

    # --- by pool ---

    def ids(self, pool: int, pages: Iterable[int]) -> list[int]:
        return [page + self.first[pool] for page in pages]

    def _split(self, ids: Iterable[int]) -> list[list[int]]:
        pages: list[list[int]] = [[] for _ in self.ledgers]
        for page in ids:
            pool = self._placed[sum(page >= start for start in self._starts) - 1]
            pages[pool].append(page - self.first[pool])
        return pages

    def beyond_share(self, pool: int) -> int:
        """Pages that the pool can give up: where no other has outgrown its share, all."""
        owned = [ledger.pages("owned") for ledger in self.ledgers]
        above = [count - share for count, share in zip(owned, self.shares, strict=True)]
        if all(count <= 0 for at, count in enumerate(above) if at != pool):
            return owned[pool]
        return max(0, above[pool])

    def with_shares(self, short: Sequence[int]) -> list[int]:
        """Pages that each pool is short of, with what is lacking to the others' shares where one
        outgrows its own."""
        if len(self.ledgers) == 1:
            return list(short)
        owned = [ledger.pages("owned") for ledger in self.ledgers]
        missing = [max(0, share - n) for share, n in zip(self.shares, owned, strict=True)]
        grows = [0 < pages > lack for pages, lack in zip(short, missing, strict=True)]
        return [
            max(pages, missing[at] if any(grows[:at] + grows[at + 1 :]) else 0)
            for at, pages in enumerate(short)
        ]

    # --- growing ---

    def want(self, lacking: Sequence[int], wanted: Sequence[int]) -> None:
        """Whom the pages are for that are planned next: what each pool lacks, and what it wants,
        that included."""
        self._lacking, self._wanted = list(lacking), list(wanted)

    def plan_growth(self, max_pages: int) -> list[int]:
        """First what is lacking, then what is wanted, in proportion; then a reserve, one by one for
        whoever has the fewest empty pages."""
        if len(self.ledgers) == 1:
            return self.ledgers[0].plan_growth(max_pages)
        counts = [0] * len(self.ledgers)
        for goal in (self._lacking, self._wanted):
            room = max_pages - sum(counts)
            for at, pages in enumerate(_in_proportion(room, self._open(goal, counts))):
                counts[at] += pages
        while sum(counts) < max_pages and (able := self._able_to_grow(counts)):
            counts[min(able, key=lambda i: self.ledgers[i].empty_pages() + counts[i])] += 1
        return [
            page
            for at, ledger in enumerate(self.ledgers)
            for page in self.ids(at, ledger.plan_growth(counts[at]))
        ]

    def _open(self, goal: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Pages of the goal that are neither counted nor on their way, as far as there are any."""
        return [
            min(
                max(0, goal[at] - ledger.pages("preparing") - counts[at]),
                ledger.pages("virtual") - counts[at],
            )
            for at, ledger in enumerate(self.ledgers)
        ]

    def _able_to_grow(self, counts: Sequence[int]) -> list[int]:
        owned = [
            ledger.pages("owned") + ledger.pages("preparing") + count
            for ledger, count in zip(self.ledgers, counts, strict=True)
        ]
        below = [n < share for n, share in zip(owned, self.shares, strict=True)]
        return [
            at
            for at, ledger in enumerate(self.ledgers)
            if ledger.pages("virtual") > counts[at] and (below[at] or not any(below))
        ]

    def grown(self, pages: Iterable[int]) -> None:
        for ledger, mine in zip(self.ledgers, self._split(pages), strict=True):
            ledger.grown(mine)

    def growth_failed(self, pages: Iterable[int]) -> None:
        for ledger, mine in zip(self.ledgers, self._split(pages), strict=True):
            ledger.growth_failed(mine)

    # --- shrinking ---

    def released(self, pages: Iterable[int]) -> None:
        for ledger, mine in zip(self.ledgers, self._split(pages), strict=True):
            ledger.released(mine)

    def kept(self, pages: Iterable[int]) -> None:
        for ledger, mine in zip(self.ledgers, self._split(pages), strict=True):
            ledger.kept(mine)

    def quarantine(self, pages: Iterable[int]) -> None:
        for ledger, mine in zip(self.ledgers, self._split(pages), strict=True):
            ledger.quarantine(mine)

    # --- counts ---

    def num_pages(self) -> int:
        return sum(ledger.num_pages() for ledger in self.ledgers)

    def pages(self, state: _PageState) -> int:
        return sum(ledger.pages(state) for ledger in self.ledgers)

    def empty_pages(self) -> int:
        return sum(ledger.empty_pages() for ledger in self.ledgers)

    def cached_only_pages(self) -> int:
        return sum(ledger.cached_only_pages() for ledger in self.ledgers)

    def used_pages(self) -> int:
        return sum(ledger.used_pages() for ledger in self.ledgers)

    def num_used(self) -> int:
        """Blocks, which are pages, without padding's of the first pool."""
        return sum(ledger.num_used() for ledger in self.ledgers) + len(self.ledgers) - 1


def _in_proportion(pages: int, goal: Sequence[int]) -> list[int]:
    """As many of `pages` for each as the goal says, or as much of it as all get."""
    whole = sum(goal)
    if whole <= pages:
        return list(goal)
    shares = [want * pages // whole for want in goal]
    for at in sorted(range(len(goal)), key=lambda at: shares[at] - goal[at]):
        if sum(shares) < pages and shares[at] < goal[at]:
            shares[at] += 1
    return shares
