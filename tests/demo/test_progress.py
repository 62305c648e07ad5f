"""What is awaited is said while it is; the bars are as long as the memory."""

from __future__ import annotations

import time

import progress as progress_module
import pytest
from progress import Progress, bars, show_live
from scene import CAPACITY, HALF, PAIRS, Pair
from workload import bursts

DEADLINE_S = 10  # guards against a hang


def read_until(capsys: pytest.CaptureFixture[str], wanted: str) -> str:
    deadline, text = time.monotonic() + DEADLINE_S, ""
    while wanted not in text:
        assert time.monotonic() < deadline, text
        text += capsys.readouterr().out
        time.sleep(0.01)
    return text


def test_all_that_is_awaited_is_named_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        Progress(every=0.02) as progress,
        progress.waiting("server A"),
        progress.waiting("upstream's answers"),
    ):
        read_until(capsys, "... waiting for server A (0 s), upstream's answers (0 s)\n")


def test_what_is_over_is_no_longer_named(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(every=0.02) as progress:
        with progress.waiting("one"):
            read_until(capsys, "one (")
        with progress.waiting("two"):
            read_until(capsys, "waiting for two (")


def test_bars_are_as_long_as_what_is_mapped_and_show_the_half() -> None:
    text = bars(("A", "B"), (HALF, CAPACITY), CAPACITY)
    assert text == f"A [{'#' * 7}|{'.' * 7}] 128 MiB  B [{'#' * 7}|{'#' * 7}] 256 MiB"
    assert f"[{'.' * 7}|{'.' * 7}]   0 MiB" in bars(("A", "B"), (0, 0), CAPACITY)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_live_line_is_one_line_of_a_terminal(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_LIVE", True)
    label = max((burst.label for burst in bursts(pair)), key=len)
    show_live(label, pair.names, (HALF, HALF), CAPACITY)
    text = capsys.readouterr().out
    assert "\n" not in text and text.startswith("\r")
    assert len(text.removeprefix("\r\x1b[K")) < 80


def test_there_is_no_live_line_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    show_live("both", ("A", "B"), (HALF, HALF), CAPACITY)
    assert capsys.readouterr().out == ""
