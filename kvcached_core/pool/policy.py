"""How many pages to ask for, and how many to give back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GrowthPolicy:
    """A reserve of empty pages between two marks.

    Growth fills the reserve up to `low_pages`; shrinking starts above `high_pages` and goes down
    to `low_pages`, so that neither undoes the other. All numbers are pages.
    """

    low_pages: int
    high_pages: int

    def __post_init__(self) -> None:
        if not 0 <= self.low_pages <= self.high_pages:
            raise ValueError(
                f"reserve marks are low_pages={self.low_pages}, high_pages={self.high_pages}; "
                "must be 0 <= low_pages <= high_pages"
            )

    def pages_to_grow(self, empty: int, preparing: int, short_pages: int) -> int:
        """Pages to ask for now.

        `short_pages` is what is still missing once every free block at hand is handed out: so in a
        shortage the empty pages are spoken for and do not count towards the reserve.
        """
        _check_counts(empty=empty, preparing=preparing, short_pages=short_pages)
        at_hand = preparing + (0 if short_pages else empty)
        return max(0, short_pages + self.low_pages - at_hand)

    def pages_to_retire(self, empty: int, preparing: int, idle: bool) -> int:
        """Empty pages to give back now; an idle engine keeps no more than `low_pages`.

        None while growth is in flight: whoever asked for it may be about to use them.
        """
        _check_counts(empty=empty, preparing=preparing)
        mark = self.low_pages if idle else self.high_pages
        if preparing or empty <= mark:
            return 0
        return empty - self.low_pages


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count}, must be >= 0")
