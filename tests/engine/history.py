"""Two engines' lives at random on one budget, by their storage_pair.Pairs."""

from __future__ import annotations

import random

from engine.storage_pair import Pair, tokens


class History:
    """Acts of engines of one budget of `capacity` bytes. Each act checks what always holds."""

    def __init__(self, rng: random.Random, pairs: list[Pair], capacity: int) -> None:
        self.rng, self.pairs, self.capacity = rng, pairs, capacity
        self.admitted = self.refused = 0

    def change(self, pair: Pair) -> None:
        """A request comes, or one goes."""
        if self.rng.random() < 0.55:
            length = self.rng.choice([1, 2, 5, 9, 14])
            wanted = tokens(length, seed=self.rng.randrange(6))
            got = pair.admit(wanted, self.rng.choice([1, 2, 9]))
            self.admitted, self.refused = (
                self.admitted + (got is not None),
                self.refused + (got is None),
            )
        elif pair.requests:
            pair.finish(self.rng.choice(list(pair.requests)))

    def step(self, pair: Pair) -> None:
        if pair.requests or self.rng.random() < 0.5:
            pair.step()
        else:
            pair.rest()
        pair.check_cache()
        assert sum(row.lease for row in pair.budget.rows()) <= self.capacity

    def end(self, page_bytes: int) -> None:
        """All requests go: of pages that lease so much, the null page and the reserve are left."""
        assert self.admitted > 30 and self.refused > 3
        for pair in self.pairs:
            pair.clear()
            pair.pool.reset_prefix_cache()
            for _ in range(2):
                pair.rest()
                pair.settle()
            assert pair.lease <= (1 + pair.plan.settings.reserve_pages) * page_bytes
