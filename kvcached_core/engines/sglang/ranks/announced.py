"""What a supply asks, answered as the first rank announced it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvcached_core.budget import Segment
from kvcached_core.engines.sglang.ranks.news import News
from kvcached_core.instance.agreement import Agreement, Changes
from kvcached_core.instance.budgets import Budgets, Question
from kvcached_core.instance.plan import StoragePlan

Wait = Callable[[], object]
"""What the first rank does before it looks; the others wait for what it then announces."""


class AnnouncedAgreement(Agreement):
    """Changes come as they are announced. The first rank's has transactions `behind` it."""

    def __init__(
        self, segment: Segment, behind: Agreement | None, hear: Callable[[Wait], None]
    ) -> None:
        self.behind = behind
        self.seen = 0
        """Of the progress behind, before the last look."""
        self._segment = segment
        self._hear = hear
        self._growing = 0
        self._grown = 0  # of those, announced and not polled yet
        self._changes = Changes()
        self._heard = 0

    def outstanding(self) -> int:
        return self._growing

    def request(self, pages: Sequence[int]) -> None:
        self._growing += len(pages)
        if self.behind is not None:
            self.behind.request(pages)

    def retire(self, pages: Sequence[int], epoch: int) -> None:
        if self.behind is not None:
            self.behind.retire(pages, epoch)

    def take(self, news: News) -> None:
        self._grown += news.grown
        news.add_to(self._changes)
        self._heard += 1

    def poll(self) -> Changes:
        self._growing -= self._grown
        self._grown = 0
        changes, self._changes = self._changes, Changes()
        return changes

    def progress(self) -> int:
        return self._heard

    def wait_progress(self, seen: int, milliseconds: int) -> int:
        def wait() -> None:
            assert self.behind is not None
            self.behind.wait_progress(self.seen, milliseconds)

        if seen == self._heard:
            self._hear(wait)
        return self._heard

    def failure(self) -> str:
        return self._segment.failure() if self.behind is None else self.behind.failure()

    def close(self) -> None:
        if self.behind is not None:
            self.behind.close()


class AnnouncedBudgets(Budgets):
    """Answers as it was announced. `outside` is what there is now."""

    def __init__(self, plan: StoragePlan, segment: Segment, hear: Callable[[Wait], None]) -> None:
        super().__init__(plan, segment)
        self.outside = Budgets(plan, segment)
        self.news = News()
        self._hear = hear

    def least_pages(self, question: Question) -> int:
        return self.news.free if question == "available" else self.news.reachable

    def fair_pages(self) -> int:
        return self.news.fair

    def others_want(self) -> bool:
        return self.news.wanted

    def asked_pages(self, unused: int | None = None) -> int:
        return self.news.asked

    def event(self) -> tuple[int, ...]:
        return self.news.event

    def wait_event(self, seen: tuple[int, ...], milliseconds: int) -> None:
        self._hear(lambda: self.outside.wait_event(seen, milliseconds))
