"""Each script's full trace is the one that was reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcached_core.txn import ProtocolError
from txn.mutants import MUTANTS, mutant
from txn.traces import replay, scripts
from txn.world import Violation


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_the_trace_is_as_written(path: Path) -> None:
    assert replay(path.read_text()) == path.read_text()


def test_there_are_scripts() -> None:
    assert len(scripts()) >= 8


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_a_trace(name: str) -> None:
    changed = []
    with mutant(name):
        for path in scripts():
            try:
                if replay(path.read_text()) != path.read_text():
                    changed.append(path.stem)
            except (Violation, ProtocolError, AssertionError):
                changed.append(path.stem)
    print(changed)
    assert changed
