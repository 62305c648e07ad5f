"""Puts the tools on the path and gives each test a repository root of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from fake_index import FakeIndex, serve
from fake_upstream import World, make_world
from rebase.index import forget_pages
from upgrades import add_releases


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
    releases = patched.copy_to(folder / "releases")
    add_releases(releases)
    return {"vendored": vendored, "patched": patched, "releases": releases}


@pytest.fixture
def vendored(templates: dict[str, World], tmp_path: Path) -> World:
    """A root with the fake engine materialised, without patches."""
    return templates["vendored"].copy_to(tmp_path / "root")


@pytest.fixture
def patched(templates: dict[str, World], tmp_path: Path) -> World:
    """The same with two patches: a hook in upstream's file, and a new package; exported."""
    return templates["patched"].copy_to(tmp_path / "root")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An empty package index, the one that pip and the tools ask."""
    forget_pages()
    with serve() as found:
        monkeypatch.setenv("PIP_INDEX_URL", found.url)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        yield found


@pytest.fixture
def releases(templates: dict[str, World], tmp_path: Path, index: FakeIndex) -> World:
    """The patched root, and an index with its wheels and those of later releases."""
    world = templates["releases"].copy_to(tmp_path / "root")
    world.index = index
    index.offer_all(world.engine_home / "wheels")
    return world
