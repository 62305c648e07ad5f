"""When answers count as equal.

Kernels on a GPU may sum in another order in another batch, so float32 answers can differ where two
tokens are nearly equally likely. Which requests that may happen to is fixed beforehand, by static's
run alone: a request is a tie if at any of its tokens static's two best logits lie closer than GAP.
Ties are not compared, and there are few of them; all other answers must be equal, every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.processes import Run
from gpu.scale import REHEARSAL

# Of some 70 answers that differed on a GPU, all but one did at gaps below 6e-4, that one at 9.9e-4.
# On a CPU answers are equal.
GAP = 1e-6 if REHEARSAL else 1.5e-3
MOST_TIES = 0.15  # of static's requests; random logits of the model's scale make it 0.11

Answers = Iterable[tuple[int, list[int]]]
Difference = tuple[int, int, float]  # request, its first token that differs, static's gap there


@dataclass
class Comparison:
    """Of one or more rounds of answers with static's."""

    static_ties: float
    """Part of static's requests that are ties."""
    requests: int = 0
    ties: int = 0
    different_ties: list[Difference] = field(default_factory=list)
    wrong: list[Difference] = field(default_factory=list)
    """Differences of requests that are no ties."""

    def summary(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "ties": self.ties,
            "static_ties": round(self.static_ties, 4),
            "different_ties": len(self.different_ties),
            "widest": sorted(gap for *_, gap in self.different_ties)[-5:],
            "wrong": self.wrong[:20],
            "wrong_count": len(self.wrong),
        }

    def check(self) -> None:
        assert self.static_ties <= MOST_TIES
        assert self.requests > self.ties
        assert not self.wrong


def whole(tokens: list[int]) -> list[int]:
    return tokens


def compare(
    static: Run, *rounds: Answers, expected: Callable[[list[int]], list[int]] = whole
) -> Comparison:
    """`rounds`: answers by the request's number in static's run; `expected`: the part of static's
    answer that they should be. Static's run tells its gaps."""
    ties = {i for i, gaps in enumerate(static["gaps"]) if min(gaps) < GAP}
    found = Comparison(len(ties) / len(static["gaps"]))
    for answers in rounds:
        for request, ours in answers:
            found.requests += 1
            found.ties += request in ties
            first = first_difference(expected(static["tokens"][request]), ours)
            if first is None:
                continue
            gaps = static["gaps"][request]
            to = found.different_ties if request in ties else found.wrong
            to.append((request, first, gaps[min(first, len(gaps) - 1)]))
    return found


def compare_runs(static: Run, *others: Run) -> Comparison:
    """Of the answers to the same requests, or to the first of them."""
    return compare(static, *(enumerate(other["tokens"]) for other in others))


def first_difference(theirs: list[int], ours: list[int]) -> int | None:
    """Index of the first token that differs or is missing."""
    pairs = enumerate(zip(theirs, ours, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    return min(len(theirs), len(ours)) if first is None and len(theirs) != len(ours) else first
