"""How many empty pages to keep ready: what to ask for, and what to give back.

The reserve is an inventory: a pass draws pages from it, and what is asked for at the end of a pass
is there by the next one. Such a stock needs to hold what is drawn during one lead time, so its mark
is the demand of a pass: not the mean, since one that finds too little waits or evicts prefixes, but
the largest of late, which is forgotten by half every `half_life` passes:

    peak(t) = max(drawn(t), peak(t-1) * 2 ** (-1 / half_life))
    mark(t) = max(low_pages, ceil(peak(t)))

(The reorder point of a base-stock policy with a lead time of one period; the estimate of demand is
a peak detector with instant attack and exponential release.) So a prefill that comes in chunks
finds pages ready from its second chunk on, growth by decoding finds them always, and a spike of D
pages is forgotten after half_life * log2(D / low_pages) passes.
"""

from __future__ import annotations

import math

# A prompt of 32k tokens in chunks of 2k takes 16 passes, and decoding makes some 40 a second. In
# replays of the multi-turn load, 4 to 32 map the same memory within 2%; longer ones stall less.
HALF_LIFE_PASSES = 16


class GrowthPolicy:
    """The mark of the reserve, and what follows from it. All numbers are pages; time is passes.

    Growth fills the reserve up to the mark; shrinking starts above the mark by more than
    `low_pages` (at least one page) and goes down to the mark, so that neither undoes the other.
    A `low_pages` of 0 turns the reserve off: nothing is asked for ahead of need.
    """

    def __init__(self, low_pages: int, half_life: int = HALF_LIFE_PASSES) -> None:
        if low_pages < 0 or half_life < 1:
            raise ValueError(
                f"a reserve has low_pages={low_pages}, half_life={half_life}; "
                "must be low_pages >= 0 and half_life >= 1"
            )
        self.low_pages = low_pages
        self._decay = 2.0 ** (-1.0 / half_life)
        self._peak = 0.0
        self._in_use = 1  # the null page

    @property
    def mark(self) -> int:
        """Empty pages to have ready for the next pass."""
        return max(self.low_pages, math.ceil(self._peak)) if self.low_pages else 0

    def end_pass(self, in_use: int, short_pages: int = 0) -> None:
        """A pass has ended: `in_use` pages are not empty, `short_pages` were asked for in vain."""
        if in_use < 0 or short_pages < 0:
            _refuse(in_use=in_use, short_pages=short_pages)
        drawn = max(0, in_use - self._in_use) + short_pages
        self._peak = max(float(drawn), self._peak * self._decay)
        self._in_use = in_use

    def rest(self) -> None:
        """No pass is in sight: back to the low mark at once."""
        self._peak = 0.0

    def pages_to_grow(self, empty: int, preparing: int, short_pages: int) -> int:
        """Pages to ask for now.

        `short_pages` is what is still missing once every free block at hand is handed out: so in a
        shortage the empty pages are spoken for and do not count towards the reserve.
        """
        if empty < 0 or preparing < 0 or short_pages < 0:
            _refuse(empty=empty, preparing=preparing, short_pages=short_pages)
        at_hand = preparing + (0 if short_pages else empty)
        return max(0, short_pages + self.mark - at_hand)

    def pages_to_retire(self, empty: int, preparing: int, idle: bool) -> int:
        """Empty pages to give back now; an idle engine keeps no more than `low_pages`.

        None while growth is in flight: whoever asked for it may be about to use them.
        """
        if empty < 0 or preparing < 0:
            _refuse(empty=empty, preparing=preparing)
        if preparing:
            return 0
        if idle:
            return max(0, empty - self.low_pages)
        surplus = empty - self.mark
        return surplus if surplus > max(self.low_pages, 1) else 0


def _refuse(**counts: int) -> None:
    name, count = min(counts.items(), key=lambda item: item[1])
    raise ValueError(f"{name} is {count}, must be >= 0")
