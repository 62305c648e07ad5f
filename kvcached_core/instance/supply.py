"""Memory for one engine's pages, as the half beside the scheduler sees it.

Asks the ranks for pages through the instance's segment and takes in what became of them; names the
pages that go back, with the epoch behind which they do; tells the neighbours what is lacking and
what could be given, and reads from the budget what they tell. It knows pages and the ledger, no
requests and no prefix cache. All methods run in the engine core's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from kvcached_core.budget import Segment, remove_segment
from kvcached_core.instance.agreement import Agreement, Changes, make_agreement
from kvcached_core.instance.budgets import Budgets
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.instance.waits import Deadline
from kvcached_core.pool import GrowthPolicy, Ledger

PageState = Literal["virtual", "preparing", "owned", "retiring", "quarantined"]

# An engine in which nothing can run looks again at least this often.
_STARVED_MS = 10
_SUSPEND_MS = 5000


class Supply:
    """RuntimeError from any call that settles, once a rank reports a failure after which blocks
    might be lost: the engine then stops instead of serving wrong data."""

    def __init__(self, plan: StoragePlan, ledger: Ledger, log: logging.Logger) -> None:
        self._plan = plan
        self._log = log
        self._ledger = ledger
        self._policy = GrowthPolicy(plan.settings.reserve_pages)
        self._shares = plan.all_shares
        self._floor_pages = max(-(-share.floor // share.page_bytes) for share in self._shares)
        self.segment = Segment.open(str(plan.segment))
        self.budgets = self._make_budgets()
        self.agreement = self._make_agreement()
        self._epoch = 0
        self._retiring = 0  # pages
        self._aborting: list[int] = []
        self._aborted: set[int] = set()  # of those that retire: asked for, not owned by all
        self._most_pages: int | None = None  # of this pass
        self._wish = 0  # as published
        self._idle_pages = 0  # as published
        self._is_told = True  # whether the ranks were rung since
        self._refused_at: tuple[int, ...] | None = None

    def close(self) -> None:
        self.agreement.close()
        remove_segment(self._plan.segment)

    # --- what could be had ---

    def obtainable_blocks(self, *, anew: bool = False) -> int:
        """Advice: blocks at hand, on their way and to be had, with what neighbours could give. What
        this engine could own at most is looked up once a pass, or `anew`."""
        # On the path of every request in every pass: as few calls as can be.
        if anew or self._most_pages is None:
            self._most_pages = self._look_up_most_pages()
        return self._ledger.obtainable(self._most_pages, self.agreement.outstanding())

    def _look_up_most_pages(self) -> int:
        coming = self.agreement.outstanding()
        return self._reachable_pages() + coming + self._ledger.pages("owned")

    def needs_neighbours(self, short_pages: int) -> bool:
        """Whether so many more pages are to be had only if a neighbour gives some up."""
        return short_pages > self.agreement.outstanding() + self._free_pages()

    def is_beyond_share(self, num_blocks: int) -> bool:
        """Whether others lack memory of which this engine's requests, with so many blocks more,
        would use more than its share. What pages use is reckoned with what belongs to them, so
        that all of a limit is within the share of an engine whose neighbours lack nothing."""
        ledger, per_page = self._ledger, self._plan.blocks_per_page
        room = ledger.used_pages() * per_page - 1 - ledger.num_used()
        pages = ledger.used_pages() + max(0, -((room - num_blocks) // per_page))
        return pages > self.budgets.fair_pages()

    def _free_pages(self) -> int:
        """Pages that the budgets would grant now."""
        return self.budgets.least_pages("available")

    def _spare_pages(self) -> int:
        """Pages that can be had without taking what a neighbour has or waits for."""
        if self._is_refused() or self.budgets.others_want():
            return 0
        return self._free_pages()

    def _is_refused(self) -> bool:
        """Whether a rank said no, and nothing has changed in a record since."""
        return self._refused_at == self.budgets.event()

    # --- growing ---

    def grow(self, short_pages: int, due_pages: int) -> None:
        """Asks for what is short and for the reserve: for `due_pages` of it in any case, for the
        rest as far as nobody else needs the memory."""
        ledger = self._ledger
        coming = self.agreement.outstanding()
        wanted = self._policy.pages_to_grow(ledger.empty_pages(), coming, short_pages)
        wanted = min(wanted, ledger.pages("virtual"))
        needed = 0 if self._is_refused() else max(0, due_pages - coming)
        if wanted > needed:
            wanted = max(needed, min(wanted, self._spare_pages()))
        pages = ledger.plan_growth(wanted)
        if pages:
            self.agreement.request(pages)

    def reserve_wish(self) -> int:
        """Pages that the reserve lacks and only a neighbour can give: asked for ahead, so that a
        request finds them. What could be had by evicting prefixes here lacks nothing."""
        missing = self._policy.mark - self.unused_pages() - self.agreement.outstanding()
        if missing <= 0:
            return 0
        return max(0, min(missing, self._reachable_pages() - self._free_pages()))

    def is_growing(self) -> bool:
        """Whether a rank has yet to answer."""
        return self.agreement.outstanding() > 0

    def settle(self) -> None:
        """Takes in what the ranks have done since the last look."""
        if self.agreement.outstanding() or self._retiring:
            self._take_in(self.agreement.poll())
        if failure := self.agreement.failure():
            raise RuntimeError(f"KV storage of engine {self._plan.instance} failed: {failure}")

    def _take_in(self, changes: Changes) -> None:
        ledger, record = self._ledger, self._record
        ledger.grown(changes.owned)
        ledger.growth_failed(changes.refused)
        self._aborting += changes.partial
        if changes.refused or changes.partial:
            self._refused_at = self.budgets.event()
            self._most_pages = None
        if changes.lost:
            self._log.error("KV storage: %d pages lost to a driver error", len(changes.lost))
            ledger.quarantine(changes.lost)
            record(changes.lost, "retiring", "quarantined", changes.epoch)
        failed = [page for page in changes.released if page in self._aborted]
        ledger.growth_failed(failed)
        ledger.released([page for page in changes.released if page not in self._aborted])
        ledger.kept(changes.kept)
        record(changes.released, "retiring", "virtual", changes.epoch)
        record(changes.kept, "retiring", "owned", changes.epoch)
        self._aborted.difference_update(changes.released, changes.lost)
        self._retiring -= changes.retired

    # --- bounded waits ---

    def await_growth(self, pages_short: Callable[[], int], deadline: Deadline | None = None) -> int:
        """Waits for growth on its way until nothing is short; returns the pages still short.
        `reserve_wait_ms` if no deadline is given."""
        deadline = deadline or self._deadline(self._plan.settings.reserve_wait_ms)
        while True:
            seen = self.agreement.progress()
            self.settle()
            short, left = pages_short(), deadline.left_ms()
            if not short or not left or not self.agreement.outstanding():
                return short
            self.agreement.wait_progress(seen, left)

    def await_reclaim(self, pages_short: Callable[[], int], wish: int) -> int:
        """Waits for neighbours to give up what none of their requests uses, since without it a
        running request loses its work; returns the pages still short. `wish` is what the pass
        lacks already."""
        deadline = self._deadline(self._plan.settings.reclaim_wait_ms)
        while True:
            seen = self.budgets.event()
            short, left = self.await_growth(pages_short, deadline), deadline.left_ms()
            # Two that wait for each other would only lose time: who is asked gives first.
            if not short or not left or self.pages_for_neighbours():
                return short
            if short <= self._free_pages() and not self._is_refused():
                self.grow(short, short)
            elif short <= self._reachable_pages():
                self.publish_wish(max(wish, short))
                self.budgets.wait_event(seen, left)
            else:
                return short

    def await_anything(self) -> None:
        """Nothing can run for want of memory: a short sleep that any change in the record ends."""
        if not self.agreement.outstanding():
            self.budgets.wait_event(self.budgets.event(), _STARVED_MS)

    # --- giving back ---

    def end_pass(self, short_pages: int) -> None:
        """The policy sees what a pass drew."""
        self._most_pages = None
        self._policy.end_pass(self._ledger.used_pages(), short_pages)

    def rest(self) -> None:
        """No pass is in sight."""
        self._most_pages = None
        self._policy.rest()

    def rest_from_growth(self) -> None:
        """Takes in what is on its way, if it comes soon, rather than be woken for it."""
        if self.is_growing():
            self.await_growth(self.agreement.outstanding)

    def unused_pages(self) -> int:
        """Owned pages that no request uses."""
        return self._ledger.empty_pages() + self._ledger.cached_only_pages()

    def surplus_pages(self) -> int:
        """Empty pages beyond the reserve."""
        ledger = self._ledger
        return self._policy.pages_to_retire(
            ledger.empty_pages(), self.agreement.outstanding(), idle=ledger.num_used() == 0
        )

    def pages_for_neighbours(self) -> int:
        """Unused pages above the floor that a neighbour waits for and that are not on their way."""
        unused = self.unused_pages()
        asked = self.budgets.asked_pages(unused)
        if not asked:
            return 0
        missing = asked - self._ledger.pages("retiring")
        above_floor = self._ledger.pages("owned") - self._floor_pages
        return max(0, min(missing, unused, above_floor))

    def is_asked(self) -> bool:
        """Whether by the record a neighbour waits for what this engine could give. From any
        thread."""
        return self.budgets.asked_pages() > 0

    def has_aborted(self) -> bool:
        """Whether some rank owns pages that others could not get: the next update retires them."""
        return bool(self._aborting)

    def next_epoch(self, pages: Sequence[int]) -> tuple[int, list[int]]:
        """Sends `pages` on their way back, and with them those that not every rank could get: the
        epoch behind which all of them go, and all of them."""
        self._epoch += 1
        aborted, self._aborting = self._aborting, []
        if pages or aborted:
            self._aborted.update(aborted)
            self._retiring += len(pages) + len(aborted)
            self.agreement.retire([*pages, *aborted], self._epoch)
            self._record(pages, "owned", "retiring", self._epoch)
            self._record(aborted, "preparing", "retiring", self._epoch)
        return self._epoch, [*pages, *aborted]

    def finish_growth(self) -> None:
        """Waits until the ranks have answered; RuntimeError if they do not in time."""
        if self.await_growth(self.agreement.outstanding, self._deadline(_SUSPEND_MS)):
            raise RuntimeError(
                f"KV storage of engine {self._plan.instance}: its ranks did not answer within "
                f"{_SUSPEND_MS} ms, so it cannot sleep"
            )

    # --- telling the neighbours ---

    def publish_wish(self, pages: int) -> None:
        """Pages that a request lacks."""
        if pages:  # what the limit forbids, no neighbour can give
            pages = min(pages, self.budgets.pages_below_limit())
        if pages != self._wish:
            self._wish = pages
            self.segment.set_wish(pages)

    def publish_idle(self, *, resting: bool) -> None:
        """Pages that could be given. While nobody wants them, a step tells it without a system
        call, and neighbours see it within a second or when one of them wants memory."""
        idle = self.unused_pages()
        if idle != self._idle_pages:
            self._idle_pages = idle
            self._is_told = False
            self.segment.set_idle(idle)
        if not self._is_told and (resting or self.budgets.others_want()):
            self._is_told = True
            self.segment.ring_ranks()

    # --- what a subclass may do otherwise ---

    def _make_budgets(self) -> Budgets:
        return Budgets(self._plan, self.segment)

    def _make_agreement(self) -> Agreement:
        return make_agreement(self._plan, self.segment)

    def _deadline(self, milliseconds: int) -> Deadline:
        return Deadline(milliseconds)

    def _record(
        self, pages: Sequence[int], before: PageState, after: PageState, epoch: int
    ) -> None:
        self.segment.record(pages, before, after, epoch)

    # --- inside ---

    def _reachable_pages(self) -> int:
        return self.budgets.least_pages("reachable")
