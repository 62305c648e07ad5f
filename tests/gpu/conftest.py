from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.processes import Engines, Run
from gpu.load import ENVIRONMENT, RUNNERS, SHAPE, job

Note = Callable[..., None]


class Results:
    """What the tests found, printed and kept in the file that KVCACHED_GPU_RESULTS names."""

    def __init__(self) -> None:
        self.folder: Path | None = None  # of the engines
        self._found: dict[str, Any] = {}

    def keep(self, name: str, **figures: Any) -> None:
        """Keeps figures of a test under its name."""
        self._found[name] = figures
        print(name, json.dumps(figures))
        if path := os.environ.get("KVCACHED_GPU_RESULTS"):
            Path(path).write_text(json.dumps(self._found, indent=1) + "\n")

    def keep_logs(self) -> None:
        """Of engines that ended without a result."""
        for log in sorted(self.folder.glob("*.log")) if self.folder else []:
            name = f"engine {log.stem}, no result"
            if name not in self._found and not log.with_suffix(".result").exists():
                self.keep(name, log=log.read_text(errors="replace")[-3000:])


RESULTS = pytest.StashKey[Results]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = Results()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Also where a fixture failed."""
    item.config.stash[RESULTS].keep_logs()


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Engines:
    folder = tmp_path_factory.mktemp("engines")
    pytestconfig.stash[RESULTS].folder = folder
    return Engines(folder, SHAPE, ENVIRONMENT)


@pytest.fixture(scope="session")
def note(pytestconfig: pytest.Config) -> Note:
    """Keeps figures of a test under its name."""
    return pytestconfig.stash[RESULTS].keep


@pytest.fixture(scope="session", params=sorted(RUNNERS))
def runner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def static(engines: Engines, runner: str) -> Run:
    return engines.run(f"static-{runner}", job(runner))


@pytest.fixture
def figures(note: Note, runner: str) -> Note:
    def keep(name: str, **found: Any) -> None:
        note(f"{name}, {runner} runner", **found)

    return keep
