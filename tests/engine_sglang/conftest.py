"""Fixtures of SGLang's tests. Nothing here imports it: they are collected everywhere, and run in
the environment that `ci/env.sh --engine sglang` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.processes import Run
from engine_sglang.processes import VARIABLES, SglangEngines


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> SglangEngines:
    return SglangEngines(tmp_path_factory.mktemp("engines"))


@pytest.fixture
def sglang_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must be set before SGLang is imported into the process of the tests."""
    for name, value in {**VARIABLES, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def rigs(tmp_path: Path, sglang_variables: None) -> Iterator[Callable[..., Any]]:
    """Makes rigs of a class in one folder of budgets; closed at the end, they hold nothing."""
    made: list[Any] = []

    def build(cls: Callable[..., Any], **settings: Any) -> Any:
        made.append(cls(tmp_path / "budget", **settings))
        return made[-1]

    yield build
    for rig in made:
        driver = rig.backend._memory.driver
        rig.close()
        assert driver.held_bytes() == 0


@pytest.fixture
def make(rigs: Callable[..., Any]) -> Callable[..., Any]:
    from engine_sglang.rig import Rig

    return partial(rigs, Rig)


@pytest.fixture(scope="session")
def upstream(engines: SglangEngines) -> Run:
    """Unpatched upstream, page size 1."""
    return engines.run("upstream", {}, upstream=True)
