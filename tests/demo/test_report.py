"""The demo says OK only if all is as promised: each fault alone makes it say what was wrong."""

from dataclasses import replace

import pytest
from memory import Sample
from report import Outcome, Played
from scene import CAPACITY, HALF, MIB, MIXED, SAME, Pair


def good(pair: Pair = SAME) -> Outcome:
    one, other = pair.engines
    most = [(0, 0), (HALF + MIB, 2 * MIB)]
    return Outcome(
        pair,
        capacity=CAPACITY,
        refusal="needs more than there is",
        played=[
            Played(f"{one.name} 1", (0,), 8, 8, 0.5, 1.0, most, (HALF, 0)),
            Played(f"{other.name} 1", (1,), 8, 8, 2.5, 1.0, [(HALF - MIB, HALF + MIB)], (0, HALF)),
        ],
        stopped={one.name: one.end_status, other.name: other.end_status},
        samples=[Sample(0.1, (0, 0)), Sample(0.7, (HALF + MIB, 2 * MIB))],
        told_to_end=4.0,
    )


def change(outcome: Outcome, at: int, **what: object) -> Outcome:
    outcome.played[at] = replace(outcome.played[at], **what)  # type: ignore[arg-type]
    return outcome


@pytest.mark.parametrize("pair", [SAME, MIXED], ids=lambda pair: pair.name)
def test_nothing_is_wrong_with_a_good_outcome(pair: Pair) -> None:
    assert good(pair).problems() == []


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(SAME), "0 of 0 answers"),
        (change(good(), 0, right=7), "1 of 16 answers differ"),
        (change(good(), 0, samples=[(CAPACITY, 1)]), "more than 256 MiB"),
        (change(good(), 1, samples=[(0, HALF)]), "B never had more than 128 MiB"),
        (replace(good(), refusal=""), "did not refuse"),
        (replace(good(), stopped={"A": 0}), "server B ended with status None"),
        (replace(good(), stopped={"A": 1, "B": 0}), "server A ended with status 1"),
        (replace(good(MIXED), stopped={"vLLM": 0, "SGLang": 0}), "SGLang ended with status 0"),
        (replace(good(), left_behind=["process 7"]), "left behind: process 7"),
    ],
)
def test_each_fault_is_named(outcome: Outcome, said: str) -> None:
    assert any(said in problem for problem in outcome.problems())


def test_the_table_has_a_column_an_engine() -> None:
    head = good(MIXED).lines()[0]
    for column in ("peak vLLM", "peak SGLang", "vLLM after", "SGLang after"):
        assert column in head


def test_the_table_has_a_row_a_burst_and_the_totals() -> None:
    lines = good().lines()
    assert lines[1].split()[:4] == ["A", "1", "8", "1.0"]
    assert "answers equal to upstream's: 16 of 16" in lines
    assert "most mapped at a time 256 MiB" in lines[-1]


def test_the_curve_has_all_samples_and_the_bursts_with_who_was_busy() -> None:
    outcome = change(good(), 1, label="both", busy=(0, 1))
    curve = outcome.curve()
    assert curve.seconds == [0.1, 0.7]
    assert curve.stopped == 4.0
    assert curve.of(0) == [0, HALF / MIB + 1]
    assert [(b.begun, b.seconds) for b in curve.bursts] == [(0.5, 1.0), (2.5, 1.0)]
    assert [b.engines for b in curve.bursts] == [(0,), (0, 1)]
