"""The conformance kit's selection and its verdict (tests/support/conformance.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ALL = ("static", "parity", "interface", "refusals", "shutdown", "poison", "mutants", "look-alike")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


class Kit:
    """Runs the kit over tests that are written here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._body = ["import pytest"]
        marker = "conformance(heading, core, backend): of the kit"
        (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n  {marker}\n")

    def add(self, *headings: str, body: str = "pass", more: str = "") -> None:
        for heading in headings:
            name = f"test_{len(self._body)}"
            mark = f"@pytest.mark.conformance({heading!r}{more})"
            self._body.append(f"{mark}\ndef {name}():\n    {body}\n")

    def run(self, selection: str) -> tuple[int, str]:
        """Exit status, and what it printed."""
        (self._folder / "test_it.py").write_text("\n".join(self._body))
        command = [sys.executable, "-m", "pytest", "-p", "support.conformance", "-p"]
        command += ["no:cacheprovider", "--conformance", selection]
        command += ["--conformance-subject", "fake==1", "test_it.py"]
        env = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""}
        ran = subprocess.run(
            command, cwd=self._folder, env=env, capture_output=True, text=True, check=False
        )
        return ran.returncode, ran.stdout + ran.stderr


def row(said: str, heading: str) -> list[str]:
    """Result, then how many passed, failed and were skipped."""
    (found,) = [line for line in said.splitlines() if line.startswith(heading + " ")]
    return found.split()[1:5]


def test_every_heading_has_a_test_that_passed(kit: Kit) -> None:
    kit.add(*ALL)
    status, said = kit.run("all")
    assert status == 0
    assert "conformance of fake==1" in said
    assert all(row(said, name) == ["green", "1", "0", "0"] for name in ALL)


@pytest.mark.parametrize("missing", ALL)
def test_a_heading_without_a_test_is_red(kit: Kit, missing: str) -> None:
    kit.add(*(name for name in ALL if name != missing))
    status, said = kit.run("all")
    assert status == 1
    assert row(said, missing) == ["RED", "0", "0", "0"]


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("assert False", ["RED", "1", "1", "0"]),
        ("pytest.skip('not today')", ["RED", "1", "0", "1"]),
        ("pytest.xfail('known')", ["RED", "1", "0", "1"]),
    ],
)
def test_what_did_not_pass_is_red_beside_what_did(kit: Kit, body: str, counts: list[str]) -> None:
    kit.add(*ALL)
    kit.add("poison", body=body)
    status, said = kit.run("all")
    assert status == 1
    assert row(said, "poison") == counts


def test_other_tests_are_left_out(kit: Kit) -> None:
    kit.add(*ALL)
    kit.add("parity", body="assert False", more=", backend=True")
    kit._body.append("def test_of_no_kit():\n    assert False\n")
    assert kit.run("all")[0] == 0


def test_the_short_selection(kit: Kit) -> None:
    kit.add("static", "parity", "poison", more=", core=True")
    kit.add("parity", body="assert False")
    status, said = kit.run("core")
    assert status == 0
    assert row(said, "parity") == ["green", "1", "0", "0"]
    assert row(said, "mutants")[0] == "-"


def test_the_selection_of_a_backend(kit: Kit) -> None:
    kit.add(*ALL, body="assert False")
    wanted = [name for name in ALL if name not in ("static", "refusals", "look-alike")]
    kit.add(*wanted, more=", backend=True")
    assert kit.run("backend")[0] == 0


def test_a_heading_that_there_is_not(kit: Kit) -> None:
    kit.add("manners")
    status, said = kit.run("all")
    assert status not in (0, 1)
    assert "no heading 'manners' of the kit" in said


def test_no_test_at_all_is_red(kit: Kit) -> None:
    assert kit.run("all")[0] == 1
