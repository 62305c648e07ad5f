"""docs/configuration.md holds the schema's table, and nothing else gets past the check."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import config_reference
import pytest
from fake_upstream import REPOSITORY

from kvcached_core.config import Settings

PAGE = REPOSITORY / "docs" / "configuration.md"


def call(page: Path, *args: str) -> int:
    return config_reference.main(["--page", str(page), *args])


@pytest.fixture
def page(tmp_path: Path) -> Path:
    copied = tmp_path / "configuration.md"
    copied.write_bytes(PAGE.read_bytes())
    return copied


def test_the_page_is_what_the_schema_says() -> None:
    assert call(PAGE, "--check") == 0, "run tools/config_reference.py and commit the result"


def test_the_table_has_a_row_a_key(page: Path) -> None:
    rows = [line for line in config_reference.table().splitlines()][2:]
    assert [row.split("`")[1] for row in rows] == [field.name for field in fields(Settings)]
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


@pytest.mark.parametrize(
    ("old", "new"),
    [("| `100` |", "| `200` |"), ("1 to 10,000", "0 to 10,000"), ("| `weight` |", "| `wait` |")],
)
def test_a_stale_table_is_found_and_renewed(
    page: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = page.read_text()
    assert old in good
    page.write_text(good.replace(old, new, 1))
    stale = page.read_text()
    assert call(page, "--check") == 1
    assert "run tools/config_reference.py" in capsys.readouterr().err
    assert page.read_text() == stale
    assert call(page) == 0
    assert page.read_text() == good


def test_text_around_the_table_is_kept(page: Path) -> None:
    text = page.read_text()
    page.write_text(f"before\n{text}after\n")
    assert call(page) == 0
    assert page.read_text() == f"before\n{text}after\n"


def test_a_page_without_a_place_for_it_is_refused(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page.write_text(page.read_text().replace(config_reference.END, ""))
    assert call(page) == 1
    assert "has no place for the table" in capsys.readouterr().err
