"""The programs that are run by hand on a GPU run, here over a look-alike of its library.

What they measure there means nothing: the look-alike's calls cost other things.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lookalike import Machine

PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Exit status 1 says that a figure is not what it should be, in the last line."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(PROGRAMS / program), *words]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert "\nRESULT" in f"\n{done.stdout}", done.stdout + done.stderr
    return done


def measured(program: str, out: Path, *words: str) -> dict[str, Any]:
    run(program, str(out), "--library", Machine().path, *words)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_time_to_map(tmp_path: Path) -> None:
    sizes = ["--mib", "2", "4", "--gib", "0.03125"]
    found = measured("driver.py", tmp_path / "out.json", "--repeats", "2", *sizes)
    assert list(found["pages"]) == ["2 MiB", "4 MiB"]
    for page in found["pages"].values():
        paths = page["ms_per_gib"]
        assert len(paths) == 7 and all(len(p["maps"]) == 2 for p in paths.values())
        assert all(p["map"] > 0 and p["unmap"] > 0 for p in paths.values())


def test_time_to_grow_on_two_devices(tmp_path: Path) -> None:
    sizes = ["--mib", "2", "--pages", "8"]
    found = measured("ranks.py", tmp_path / "out.json", "--repeats", "3", *sizes)
    (figures,) = found["ms"].values()
    assert 0 < figures["owned"] <= figures["mapped"]
    assert len(figures["driver"]) == 2 and all(took > 0 for took in figures["driver"])
    assert figures["shrunk"] > 0 and len(figures["mapped, all"]) == 3


@pytest.mark.engine
def test_what_a_neighbour_loses(tmp_path: Path) -> None:
    small = ["--gib", "0.005", "--half", "0.015625", "--copies", "20", "--replays", "20"]
    found = measured("bandwidth.py", tmp_path / "out.json", "--mib", "2", "--repeats", "1", *small)
    assert list(found["beside a rank"]) == ["2 MiB", "2 MiB, not zeroed"]
    assert all(values["mapped_gib_per_s"] > 0 for values in found["beside a rank"].values())


def spread(value: float) -> dict[str, float]:
    return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), value)


def online(tmp_path: Path, name: str, mode: str, factor: float = 1, **more: Any) -> str:
    """A file as online.py writes it, with what compare reads."""
    figures = spread(10 * factor)
    made = {
        "mode": mode,
        "failed": 0,
        "errors": [],
        "preemptions": [0, 0, 0],
        "models": [{"ttft_ms": figures, "tpot_ms": figures}] * 3,
        "device_mib": {"idle": 1, "peak": 2},
        **more,
    }
    path = tmp_path / name
    path.write_text(json.dumps(made))
    return str(path)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("factor", "more", "status", "said"),
    [
        (1.02, {}, 0, "within"),
        (1.05, {}, 1, "ttft_ms p50 is 1.0500 of static's"),
        (1.0, {"failed": 1, "errors": ["late"]}, 1, "1 requests failed, such as late"),
        (1.0, {"preemptions": [0, 3, 0]}, 1, "short of memory"),
        (1.0, {"cache_mib": {"peak": 9, "capacity": 8}}, 1, "9 MiB of cache in a budget of 8"),
    ],
)
def test_runs_are_compared(
    tmp_path: Path, factor: float, more: dict[str, Any], status: int, said: str
) -> None:
    files = [
        online(tmp_path, "s", "static"),
        online(tmp_path, "e", "elastic", factor, **more),
    ]
    done = run("online.py", "--compare", *files)
    assert done.returncode == status and said in done.stdout


@pytest.mark.engine
def test_what_disturbs_one_peak_does_not_decide(tmp_path: Path) -> None:
    usual, slow = ({"ttft_ms": s, "tpot_ms": s} for s in (spread(10), spread(50)))
    elastic = online(tmp_path, "e", "elastic", models=[usual, slow, usual])
    short = {"models": [usual, usual, slow], "preemptions": [0, 0, 9]}
    files = [online(tmp_path, f"s{i}", "static", **short) for i in range(2)]
    done = run("online.py", "--compare", *files, elastic)
    assert done.returncode == 0 and done.stdout.count("left out") == 2
    done = run("online.py", "--compare", files[0], elastic)
    assert done.returncode == 1 and "2 peaks of static, not 3" in done.stdout
