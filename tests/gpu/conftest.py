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


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"), SHAPE, ENVIRONMENT)


@pytest.fixture(scope="session")
def note() -> Note:
    """Keeps figures of a test under its name."""
    found: dict[str, Any] = {}

    def keep(name: str, **figures: Any) -> None:
        found[name] = figures
        print(name, json.dumps(figures))
        if path := os.environ.get("KVCACHED_GPU_RESULTS"):
            Path(path).write_text(json.dumps(found, indent=1) + "\n")

    return keep


@pytest.fixture(scope="session", params=sorted(RUNNERS))
def runner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def static(engines: Engines, runner: str) -> Run:
    return engines.run(f"static-{runner}", job(runner))


@pytest.fixture
def figures(note: Callable[..., None], runner: str) -> Callable[..., None]:
    def keep(name: str, **found: Any) -> None:
        note(f"{name}, {runner} runner", **found)

    return keep
