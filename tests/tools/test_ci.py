"""ci/test.sh: what runs beside the tests with vLLM is told of; each pin has its turn once.

Its parts are stood in for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_upstream import REPOSITORY

PINS = ("vllm", "vllm/9.0", "sglang", "sglang/9.0")
PART = "#!/bin/sh\n"
WHERE = PART + 'case "$*" in *sglang*) echo two ;; *) echo one ;; esac\n'
# Tests of an engine, slow if a file of its name is there, and red by another.
PYTEST = PART + (
    'case "$*" in *"-m sglang"*) who=sglang ;; *"-m engine"*) who=vllm ;; *) who=none ;; esac\n'
    "[ ! -e slow-$who ] || sleep 1.5\n"
    'echo "tests of $who ran"\n'
    "[ ! -e red-$who ]\n"
)
KIT = PART + 'echo "core of $3"\n[ ! -e "red-$3" ]\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for pin in PINS:
        (root / "vendored" / pin).mkdir(parents=True, exist_ok=True)
        (root / "vendored" / pin / "upstream.yaml").touch()
    scripts = {"ci/env.sh": WHERE, "ci/lint.sh": PART, "ci/conformance.sh": KIT}
    for venv in ("one", "two"):
        scripts |= {f"{venv}/bin/pytest": PYTEST, f"{venv}/bin/python": PART}
    for name, text in scripts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    shutil.copy(REPOSITORY / "ci" / "test.sh", root / "ci" / "test.sh")
    return root


def run(root: Path) -> tuple[int, str]:
    """Exit status and what it said; it leaves no temporary file."""
    temporary = root / "temporary"
    temporary.mkdir()
    command = [str(root / "ci" / "test.sh")]
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert list(temporary.iterdir()) == []
    return done.returncode, done.stdout


@pytest.mark.parametrize("slow", ["vllm", "sglang"])
def test_each_pin_has_its_turn_once_whoever_is_through_first(root: Path, slow: str) -> None:
    (root / f"slow-{slow}").touch()
    status, said = run(root)
    assert status == 0 and "test: all green" in said
    for what in ("tests of none", "tests of vllm", "tests of sglang"):
        assert said.count(f"{what} ran") == 1
    assert said.count("core of vllm==9.0") == said.count("core of sglang==9.0") == 1
    quick = {"vllm": "sglang", "sglang": "vllm"}[slow]
    order = [said.index(f"tests of {quick}"), said.index("core of vllm==9.0")]
    lane = said[order[0] : order[1]]
    assert order == sorted(order) and f"tests of {slow}" not in lane  # in the quick one's part


@pytest.mark.parametrize("red", ["none", "vllm", "sglang", "vllm==9.0", "sglang==9.0"])
def test_what_is_red_is_said_and_ends_it(root: Path, red: str) -> None:
    (root / f"red-{red}").touch()
    status, said = run(root)
    assert status == 1 and "test: all green" not in said
    names = {"none": "tests without an engine", "vllm": "tests with vLLM"}
    names["sglang"] = "tests with SGLang"
    assert f"test: {names.get(red, f'core modes of {red}')}: RED" in said
