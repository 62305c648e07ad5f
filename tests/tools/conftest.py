"""Puts the tools on the path and gives each test a repository root of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from fake_upstream import World, make_world  # noqa: E402


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A root with a pinned fake engine, not yet materialised."""
    return make_world(tmp_path / "root")


@pytest.fixture
def vendored(world: World) -> World:
    """The same, materialised, without patches."""
    world.run("vendor", "fake")
    return world


@pytest.fixture
def patched(vendored: World) -> World:
    """The same with two patches: a hook in upstream's file, and a new package; exported."""
    vendored.commit_example()
    vendored.run("patches", "export", "fake")
    return vendored
