"""What is awaited is said, with the end of its log; the bars are as long as the memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from progress import Progress, bars
from scene import CAPACITY, HALF

DEADLINE_S = 30  # guards against a hang


def read_until(capsys: pytest.CaptureFixture[str], wanted: str) -> str:
    deadline, text = time.monotonic() + DEADLINE_S, ""
    while wanted not in text:
        assert time.monotonic() < deadline, text
        text += capsys.readouterr().out
        time.sleep(0.01)
    return text


def test_a_wait_is_named_with_the_end_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_text("first\n(EngineCore pid=7) INFO 11-30 04:36:37 [loader.py:53] Loading it\n\n")
    progress = Progress(every=0.02)
    with progress.waiting("server A starts", log), progress.waiting("answers"):
        text = read_until(capsys, "... answers: 0 s\n")
    assert "... server A starts: 0 s (Loading it)\n" in text


def test_a_wait_that_is_over_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(every=0.02)
    with progress.waiting("one"):
        read_until(capsys, "... one")
    capsys.readouterr()
    with progress.waiting("two"):
        text = read_until(capsys, "... two")
        text += read_until(capsys, "... two")
    assert text.count("... one") <= 1  # the line that was under way when it ended


def test_a_log_that_is_not_there_yet_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(every=0.02).waiting("server B starts", tmp_path / "none.log"):
        assert "starts: 0 s\n" in read_until(capsys, "server B starts")


def test_bars_are_as_long_as_what_is_mapped_and_show_the_half() -> None:
    text = bars((HALF, CAPACITY), CAPACITY)
    assert text == f"A [{'#' * 16}|{'.' * 16}] 128 MiB  B [{'#' * 16}|{'#' * 16}] 256 MiB"
    assert f"[{'.' * 16}|{'.' * 16}]   0 MiB" in bars((0, 0), CAPACITY)
