"""Finds upstream's text in ours: six consecutive lines that say something, blank lines aside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Long enough that equal idioms do not match by chance, short enough that a copied loop does.
WINDOW = 6
OWN_FOLDERS = ("kvcached_core", "csrc", "tools", "tests", "ci")
OWN_SUFFIXES = frozenset({".py", ".pyi", ".cc", ".h", ".sh"})
_IMPORT = re.compile(r"(import\s+\S|from\s+\S+\s+import\b|#\s*include\b)")


@dataclass(frozen=True)
class Text:
    """A piece of text: where it stands, and its lines."""

    where: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Copy:
    """WINDOW lines of ours at `ours` (from `line`, its first) that stand in upstream's `theirs`."""

    ours: str
    line: str
    theirs: str


def telling_lines(lines: Iterable[str]) -> list[str]:
    """The lines that say something, stripped: no blanks, lone punctuation or imports."""
    kept: list[str] = []
    in_import = False
    for raw in lines:
        line = raw.strip()
        if in_import:
            in_import = ")" not in line
        elif _IMPORT.match(line):
            in_import = line.endswith("(")
        elif any(c.isalnum() for c in line):
            kept.append(line)
    return kept


def own_texts(root: Path) -> Iterator[Text]:
    """The repository's own sources."""
    for folder in OWN_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in OWN_SUFFIXES and path.is_file():
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                yield Text(str(path.relative_to(root)), tuple(lines))


def find_copies(ours: Iterable[Text], theirs: Iterable[Text]) -> list[Copy]:
    """Every place of ours that repeats WINDOW lines of theirs; one entry for each of our texts."""
    windows: dict[tuple[int, ...], tuple[str, str]] = {}
    numbers: dict[str, int] = {}
    for text in ours:
        kept = telling_lines(text.lines)
        ids = [numbers.setdefault(line, len(numbers)) for line in kept]
        for at in range(len(ids) - WINDOW + 1):
            windows.setdefault(tuple(ids[at : at + WINDOW]), (text.where, kept[at]))
    found: dict[str, Copy] = {}
    for text in theirs:
        for window in _shared_windows(telling_lines(text.lines), numbers):
            if window in windows:
                where, line = windows[window]
                found.setdefault(where, Copy(where, line, text.where))
    return sorted(found.values(), key=lambda copy: copy.ours)


def _shared_windows(lines: list[str], numbers: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """Windows of `lines` made only of lines that we have too; nearly always none."""
    run: list[int] = []
    for line in lines:
        number = numbers.get(line)
        if number is None:
            run.clear()
            continue
        run.append(number)
        if len(run) >= WINDOW:
            yield tuple(run[-WINDOW:])
