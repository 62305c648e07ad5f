"""Plays an allocation log against a pool alone, of any geometry and policy, and measures it.

What is asked is the log's; which blocks answer, what is evicted, grown and given back is decided
anew by the ledger and the policy, as the engine's storage decides it. Growth is there by the next
pass, or at once where a call could not be served without it (counted as a stall). The page's memory
counts as mapped until it is released, which is at the end of the step that retires it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvcached_core._native import Ledger
from kvcached_core.pool import allocation_log as log
from kvcached_core.pool.policy import GrowthPolicy


class PoolTooSmall(ValueError):
    """The replayed pool cannot hold what the log holds at once."""


@dataclass(frozen=True)
class Sample:
    """The pool at the end of a pass. Blocks count the null block as used; packed is the floor:
    the pages that used and cached blocks would fill if none had a hole."""

    milliseconds: float
    mapped_pages: int
    packed_pages: int
    used_blocks: int
    cached_blocks: int

    @property
    def ratio(self) -> float:
        return self.mapped_pages / self.packed_pages


@dataclass
class Totals:
    """Sums over a replay; `mean_*` are weighted by time."""

    passes: int = 0
    popped_blocks: int = 0
    hit_blocks: int = 0
    missed_blocks: int = 0
    """Prefix hits of the log that this pool had evicted; fresh blocks were popped for them."""
    evicted_blocks: int = 0
    grown_pages: int = 0
    retired_pages: int = 0
    stalls: int = 0
    """Calls that found too few free blocks, so that pages were grown on the spot."""
    milliseconds: float = 0.0
    mean_mapped_pages: float = 0.0
    mean_packed_pages: float = 0.0
    mean_ratio: float = 0.0
    """Mean over time of mapped / packed."""
    ratio_of_means: float = 0.0
    peak_mapped_pages: int = 0
    peak_packed_pages: int = 0
    peak_ratio: float = 0.0
    """At the end of a pass, before anything is given back."""
    peak_excess_pages: int = 0
    """Most pages mapped beyond the floor, seen there too."""
    samples: list[Sample] = field(default_factory=list)


class Replay:
    """One pool, and what became of it. `limit_pages` bounds what is mapped; None: all of it."""

    def __init__(
        self,
        num_blocks: int,
        blocks_per_page: int,
        policy: GrowthPolicy,
        bound_pages: int | None = None,
        limit_pages: int | None = None,
    ) -> None:
        self.ledger = Ledger(num_blocks, blocks_per_page)
        self.totals = Totals()
        self._policy = policy
        self._bound = bound_pages
        self._limit = self.ledger.num_pages() if limit_pages is None else limit_pages
        self._block: dict[int, int] = {}  # of a live handle
        self._handle = [-1] * num_blocks
        self._next = 0
        self._last: Sample | None = None
        self._weighted = [0.0, 0.0, 0.0]

    def run(self, records: Iterable[log.Record]) -> Totals:
        """Raises PoolTooSmall, LogError for a log that contradicts itself."""
        for number, record in enumerate(records, start=1):
            try:
                self.apply(record)
            except PoolTooSmall as error:
                raise PoolTooSmall(f"record {number}: {error}") from None
            except (KeyError, ValueError) as error:
                raise log.LogError(f"record {number} ({record.kind}): {error}") from None
        return self.totals

    def apply(self, record: log.Record) -> None:
        kind, handles = record.kind, record.handles
        if kind == log.POP:
            self._pop(range(self._next, self._next + int(record.number)))
            self._next += int(record.number)
        elif kind == log.CACHE:
            self.ledger.push_cached([self._block[h] for h in handles])
        elif kind == log.FREE:
            blocks = [self._block[h] for h in handles]
            self.ledger.push_free(blocks)
            self._forget(blocks)
        elif kind == log.TAKE:
            self._take(handles)
        elif kind == log.UNCACHE:
            self._uncache([self._block[h] for h in handles if h in self._block])
        elif kind == log.RESET:
            self._uncache([self._block[h] for h in self._block])
        else:
            self._end_pass(record.number, idle=kind == log.IDLE)

    # --- blocks ---

    def _pop(self, handles: Sequence[int]) -> None:
        ledger = self.ledger
        missing = len(handles) - ledger.num_free()
        if missing > 0:
            self.totals.stalls += self._grow(-(-missing // ledger.blocks_per_page)) > 0
        if len(handles) > ledger.available():
            raise PoolTooSmall(
                f"{len(handles)} blocks are asked for, {ledger.available()} are left of "
                f"{ledger.num_blocks}, {ledger.num_used()} are used; replay with more blocks, "
                "or with a higher limit if one is set"
            )
        evicted = max(0, len(handles) - ledger.num_free())
        blocks = ledger.pop(len(handles))
        self._forget(blocks)
        for handle, block in zip(handles, blocks, strict=True):
            self._block[handle] = block
            self._handle[block] = handle
        self.totals.popped_blocks += len(handles)
        self.totals.evicted_blocks += evicted

    def _take(self, handles: Sequence[int]) -> None:
        missed = []
        for handle in handles:
            block = self._block.get(handle)
            if block is None:
                missed.append(handle)
            else:
                self.ledger.take(block)
        self.totals.hit_blocks += len(handles) - len(missed)
        self.totals.missed_blocks += len(missed)
        if missed:
            self._pop(missed)

    def _uncache(self, blocks: list[int]) -> None:
        cached = [b for b in blocks if self.ledger.state_of(b) == "cached"]
        self.ledger.uncache(cached)
        self._forget(cached)

    def _forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            handle, self._handle[block] = self._handle[block], -1
            if handle >= 0:
                del self._block[handle]

    # --- pages ---

    def _end_pass(self, milliseconds: float, idle: bool) -> None:
        ledger, policy = self.ledger, self._policy
        self._note_peak(self._sample(milliseconds))
        policy.end_pass(ledger.used_pages())
        if idle:
            policy.rest()
        if self._bound is not None and ledger.is_over_bound(self._bound):
            victims = ledger.victims_over_bound(self._bound)
            self.totals.evicted_blocks += len(victims)
            self._uncache(victims)
        none_used = ledger.num_used() == 0
        surplus = policy.pages_to_retire(ledger.empty_pages(), 0, idle=none_used)
        retired = ledger.retire_empty(surplus)
        ledger.released(retired)
        self.totals.retired_pages += len(retired)
        if not none_used:
            self._grow(0)
        self._account(self._sample(milliseconds))

    def _grow(self, short_pages: int) -> int:
        ledger = self.ledger
        wanted = self._policy.pages_to_grow(ledger.empty_pages(), 0, short_pages)
        pages = ledger.plan_growth(min(wanted, self._limit - ledger.pages("owned")))
        ledger.grown(pages)
        self.totals.grown_pages += len(pages)
        return len(pages)

    # --- measures ---

    def _sample(self, milliseconds: float) -> Sample:
        ledger = self.ledger
        used = ledger.num_used() + 1
        cached = ledger.num_cached()
        packed = -(-(used + cached) // ledger.blocks_per_page)
        return Sample(milliseconds, ledger.pages("owned"), packed, used, cached)

    def _note_peak(self, now: Sample) -> None:
        totals = self.totals
        totals.peak_mapped_pages = max(totals.peak_mapped_pages, now.mapped_pages)
        totals.peak_packed_pages = max(totals.peak_packed_pages, now.packed_pages)
        totals.peak_ratio = max(totals.peak_ratio, now.ratio)
        excess = now.mapped_pages - now.packed_pages
        totals.peak_excess_pages = max(totals.peak_excess_pages, excess)

    def _account(self, now: Sample) -> None:
        """A sample holds from the end of its pass to the end of the next."""
        self._note_peak(now)
        totals, last = self.totals, self._last
        totals.passes += 1
        totals.samples.append(now)
        self._last = now
        if last is None:
            return
        held = now.milliseconds - last.milliseconds
        if held < 0:
            raise ValueError(f"time runs back from {last.milliseconds} to {now.milliseconds} ms")
        values = (last.mapped_pages, last.packed_pages, last.ratio)
        self._weighted = [w + held * v for w, v in zip(self._weighted, values, strict=True)]
        totals.milliseconds += held
        if totals.milliseconds > 0:
            mapped, packed, ratio = (w / totals.milliseconds for w in self._weighted)
            totals.mean_mapped_pages, totals.mean_packed_pages = mapped, packed
            totals.mean_ratio, totals.ratio_of_means = ratio, mapped / packed
