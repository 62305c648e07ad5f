"""tools/replay.py: its arguments, its report, its refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcached_core.pool.allocation_log import Header
from support.multi_turn import Load, write

TOOL = Path(__file__).resolve().parents[2] / "tools" / "replay.py"
MIB = 1 << 20


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def report(*arguments: object) -> dict[str, Any]:
    ended = run(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "turns.log"
    write(path, Load(seconds=20.0), Header(4096, 4, 8 * MIB, 2, 256 * MIB))
    return path


def test_what_is_not_given_is_as_it_was_recorded(log: Path) -> None:
    pool = report(log)["pool"]
    assert pool == {
        "num_blocks": 4096,
        "blocks_per_page": 4,
        "page_bytes": 8 * MIB,
        "reserve_pages": 2,
        "prefix_bound": 256 * MIB,
        "limit": None,
    }


def test_what_is_given_is_played(log: Path) -> None:
    found = report(log, "--page-size", "31MiB", "--prefix-bound", "0B", "--reserve-pages", 0)
    assert found["pool"]["blocks_per_page"] == 16 and found["pool"]["page_bytes"] == 32 * MIB
    assert found["pool"]["prefix_bound"] == 0 and found["hit_blocks"] == 0 < found["missed_blocks"]
    other = report(log, "--blocks-per-page", 1, "--prefix-bound", "none", "--num-blocks", 9000)
    assert other["pool"]["prefix_bound"] is None and other["missed_blocks"] == 0
    assert found["pool"]["reserve_pages"] == 0 and other["pool"]["num_blocks"] == 9000
    assert other["peak_packed_pages"] > 8 * found["peak_packed_pages"]
    limited = report(log, "--limit", "1GiB", "--prefix-bound", "none")
    assert limited["peak_mapped_pages"] == 128 and limited["evicted_blocks"] > 0


def test_the_series_tells_the_course(log: Path) -> None:
    found = report(log)
    series = found["series"]
    assert 100 <= len(series) <= 240
    assert series[0]["milliseconds"] < series[-1]["milliseconds"]
    assert all(point["mapped_pages"] >= point["packed_pages"] >= 1 for point in series)
    assert max(point["mapped_pages"] for point in series) <= found["peak_mapped_pages"]


def test_the_text_is_for_people(log: Path) -> None:
    ended = run(log)
    assert ended.returncode == 0
    names = [line.split()[0] for line in ended.stdout.splitlines()]
    assert names == ["pool", "load", "pages", "mapped", "packed", "ratio"]
    assert "4 a page of 8MiB, reserve_pages 2, prefix_bound 256MiB" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--page-size", "big"], "argument --page-size: .*big"),
        (["--blocks-per-page", "0"], "found '0', needs a number >= 1"),
        (["--reserve-pages", "-1"], "--reserve-pages"),
        (["--page-size", "2MiB", "--blocks-per-page", "2"], "not allowed with"),
    ],
)
def test_wrong_use_is_status_2(log: Path, arguments: list[str], why: str) -> None:
    ended = run(log, *arguments)
    assert ended.returncode == 2
    assert re.search(why, ended.stderr), ended.stderr


def test_what_cannot_be_played_is_status_1_and_says_why(log: Path, tmp_path: Path) -> None:
    ended = run(log, "--num-blocks", 100)
    assert ended.returncode == 1
    assert "blocks are asked for" in ended.stderr and "replay with more blocks" in ended.stderr
    ended = run(tmp_path / "none.log")
    assert ended.returncode == 1 and "No such file" in ended.stderr
    other = tmp_path / "other.log"
    other.write_bytes(b"\xff\x00 something else\n")
    ended = run(other)
    assert ended.returncode == 1 and "a log begins with" in ended.stderr
    other.write_text(log.read_text().splitlines()[0] + "\np 3\nq\np 1\n")
    ended = run(other)
    assert ended.returncode == 1 and "line 3: found 'q'" in ended.stderr
