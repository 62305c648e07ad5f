from __future__ import annotations

from kvcached_core.budget import Grant
from kvcached_core.instance.claim import Claim


class Row:
    """What is left of the workspace, what was entered, and how often it was looked at."""

    def __init__(self, left: int, grant: Grant = Grant.GRANTED) -> None:
        self.left, self.grant = left, grant
        self.looks = 0
        self.entered: list[int] = []

    def look(self) -> int:
        self.looks += 1
        return self.left

    def enter(self, claim: int, deadline_ms: int) -> Grant:
        if self.grant == Grant.GRANTED:
            self.entered.append(claim)
        return self.grant

    def step(self, claim: Claim, steps: int = 1, *, now: bool = False) -> None:
        for _ in range(steps):
            claim.lower(self.look, self.enter, now=now)


def test_it_is_looked_at_often_at_first_and_then_rarely() -> None:
    claim, row = Claim(100), Row(100)
    row.step(claim, 63)
    assert row.looks == 6  # at 1, 2, 4, 8, 16, 32
    row.step(claim, 64 * 10)
    assert row.looks == 16
    assert row.entered == []


def test_it_falls_and_never_rises() -> None:
    claim, row = Claim(100), Row(60)
    row.step(claim)
    row.left = 80
    row.step(claim)
    row.left = 50
    row.step(claim, now=True)
    assert row.entered == [60, 50] and claim.size == 50


def test_a_missed_lock_is_tried_for_again() -> None:
    claim, row = Claim(100), Row(60, Grant.MISSED)
    row.step(claim, 8)
    assert claim.size == 100
    row.grant = Grant.GRANTED
    row.step(claim, 8)
    assert row.entered == [60] and claim.size == 60


def test_what_is_taken_is_no_longer_looked_at() -> None:
    claim, row = Claim(100), Row(0)
    row.step(claim)
    looks = row.looks
    row.step(claim, 640, now=True)
    assert row.looks == looks and claim.size == 0
