#!/usr/bin/env python3
"""Writes the table of settings into docs/configuration.md, from the schema that parses them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from upstream import Refusal, report

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/configuration.md"
START = "<!-- the table of keys: written by tools/config_reference.py -->"
END = "<!-- end of the table -->"


def table() -> str:
    """The settings as a Markdown table, a row a key."""
    sys.path.insert(0, str(ROOT))  # the schema of this checkout, not of an installed one
    try:
        from kvcached_core.config import keys  # noqa: PLC0415
    finally:
        sys.path.remove(str(ROOT))
    rows = [("key", "default", "allowed", "meaning"), ("---",) * 4]
    rows += [(f"`{key.name}`", key.default, key.allowed, key.meaning) for key in keys()]
    return "".join("| " + " | ".join(_cell(text) for text in row) + " |\n" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def renewed(text: str, shown: object) -> str:
    """The page's text with the table as the schema has it. Raises Refusal without the markers."""
    if text.count(START) != 1 or text.count(END) != 1 or text.index(END) < text.index(START):
        raise Refusal(
            shown, "has no place for the table", f"put {START} and {END} on lines of their own"
        )
    before, rest = text.split(START)
    return f"{before}{START}\n{table()}{END}{rest.split(END)[1]}"


def _write(page: Path, check: bool) -> None:
    text = page.read_text(encoding="utf-8")
    fresh = renewed(text, page.name)
    if fresh == text:
        return
    if check:
        todo = "run tools/config_reference.py and commit the result"
        raise Refusal(page.name, "its table of keys is not the schema's", todo)
    page.write_text(fresh, encoding="utf-8")
    print(f"{page.name}: written")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="config_reference.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page would change")
    parser.add_argument("--page", type=Path, default=ROOT / PAGE, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    return report(lambda: _write(args.page, args.check))


if __name__ == "__main__":
    sys.exit(main())
