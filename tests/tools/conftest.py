"""Puts the tools on the path and gives each test a repository root of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from fake_upstream import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A root with a pinned fake engine, not yet materialised."""
    return make_world(tmp_path / "root")


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """Roots made once and copied for each test, which is far cheaper than git's dozens of calls."""
    folder = tmp_path_factory.mktemp("templates")
    vendored = make_world(folder / "vendored")
    vendored.run("vendor", "fake")
    patched = vendored.copy_to(folder / "patched")
    patched.commit_example()
    patched.run("patches", "export", "fake")
    return {"vendored": vendored, "patched": patched}


@pytest.fixture
def vendored(templates: dict[str, World], tmp_path: Path) -> World:
    """A root with the fake engine materialised, without patches."""
    return templates["vendored"].copy_to(tmp_path / "root")


@pytest.fixture
def patched(templates: dict[str, World], tmp_path: Path) -> World:
    """The same with two patches: a hook in upstream's file, and a new package; exported."""
    return templates["patched"].copy_to(tmp_path / "root")
