"""The words of the start line about the build."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvcached_core.provenance import Build, build_of, describe

STAMP = """DISTRIBUTION = "kvcached-fake-cpu"
VERSION = "1.0.post1"
UPSTREAM = "1.0"
VARIANT = "cpu"
SERIES_HASH = "0123456789abcdef"
"""
BUILD = Build("kvcached-fake-cpu", "1.0.post1", "1.0", "cpu", "0123456789abcdef")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    folder = tmp_path / "stampedengine"
    folder.mkdir()
    (folder / "__init__.py").touch()
    return folder


def test_a_stamp_is_read(package: Path) -> None:
    (package / "_series.py").write_text(STAMP)
    assert build_of("stampedengine._series") == BUILD


def test_a_tree_has_none(package: Path) -> None:
    assert build_of("stampedengine._series") is None


def test_what_is_no_fork_has_none(package: Path) -> None:
    assert build_of("stampedengine.storage._series") is None


def test_without_the_engine_nothing_is_told() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_engine"):
        build_of("no_such_engine.storage._series")


def test_what_is_missing_elsewhere_is_no_tree(package: Path) -> None:
    (package / "__init__.py").write_text("import no_such_module_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        build_of("stampedengine._series")


def test_the_line_names_both_versions_and_the_series() -> None:
    assert (
        describe("fake", BUILD, []) == "fake 1.0, kvcached-fake-cpu 1.0.post1, series 0123456789ab"
    )


def test_the_line_says_what_is_not_the_wheels() -> None:
    text = describe("fake", BUILD, ["fake/a.py", "fake/b.py"])
    assert text.endswith("series 0123456789ab (but 2 files are not the wheel's, such as fake/a.py)")


def test_the_line_says_that_there_is_no_wheel() -> None:
    assert (
        describe("fake", None, [])
        == "series unknown (fake runs from a tree, not from a wheel of ours)"
    )
