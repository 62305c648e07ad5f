#!/usr/bin/env python3
"""Holds the layers: imports and includes go downwards only. Exits with 1 and a line per violation.

Python: a part of kvcached_core may import parts further down LAYERS, its own, and the ground.
C++: a folder of csrc may include what INCLUDES names. A part that no table names is a violation,
so that a new one finds its layer before it finds its users.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "kvcached_core"
# From the top down; parts of one row do not import each other.
LAYERS = (
    ("engines",),
    ("instance",),
    ("controller", "control"),
    ("pool",),
    ("txn",),
    ("budget",),
    ("vmm",),
    ("config", "provenance"),
)
# The compiled layer and what any part may use; it uses no part itself.
GROUND = frozenset({"_native", "errors"})
# Parts that have no clock and no socket; a transport is the edge where txn meets the world.
PURE = ("pool", "txn")
IMPURE = frozenset({"time", "datetime", "socket", "socketserver", "selectors", "asyncio"})
EDGE = "transport"
INCLUDES = {
    "bind": {"bind", "pool", "txn", "budget", "vmm"},
    "pool": {"pool"},
    "txn": {"txn"},
    "budget": {"budget", "vmm"},
    "vmm": {"vmm"},
}
_RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row}
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def _imports(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that a module imports, lazily or for types included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _fault(path: tuple[str, ...], name: str) -> str | None:
    """Why the module at `path` (its parts below the package) may not import `name`; None if it may.

    The package's own `__init__` may import everything.
    """
    part = path[0]
    target = name.split(".")
    if len(path) == 1 and part == "__init__":
        return None
    if part in PURE and not path[1].startswith(EDGE) and target[0] in IMPURE:
        return f"{part} has no clock and no socket, but imports {target[0]}"
    if target[0] != PACKAGE:
        return None
    if len(target) < 2 or (target[1] not in _RANK and target[1] not in GROUND):
        return f"imports {name}, which is no layer: import the part that defines it"
    other = target[1]
    if other in GROUND:
        return None
    if part in GROUND:
        return f"{part} is the ground of all layers, but imports {other}"
    if part == other:
        theirs = target[2:3]
        if part == "engines" and theirs and len(path) > 2 and path[1] != theirs[0]:
            return f"engines/{path[1]} imports engines/{theirs[0]}: engines know nothing of another"
        return None
    if _RANK[other] <= _RANK[part]:
        return f"{part} imports {other}, which is not below it"
    return None


def check_python(root: Path) -> list[str]:
    """A line for each import in kvcached_core that does not go downwards."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    if not files:
        return [f"{PACKAGE}: no Python files found, expected the package"]
    found = []
    for file in files:
        shown = file.relative_to(root)
        path = tuple(shown.with_suffix("").parts[1:])
        if path[0] not in _RANK and path[0] not in GROUND and path != ("__init__",):
            found.append(f"{shown}: {path[0]} is in no layer; add it to ci/import_directions.py")
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"), str(shown))
        for line, name in _imports(tree, list(shown.parts[:-1])):
            if fault := _fault(path, name):
                found.append(f"{shown}:{line}: {fault}")
    return found


def check_cpp(root: Path) -> list[str]:
    """A line for each quoted include in csrc that its folder may not use."""
    files = sorted(p for p in (root / "csrc").rglob("*") if p.suffix in (".h", ".cc"))
    if not files:
        return ["csrc: no C++ files found, expected the sources"]
    found = []
    for file in files:
        shown = file.relative_to(root)
        folder = shown.parts[1]
        if folder not in INCLUDES:
            found.append(f"{shown}: {folder} is in no layer; add it to ci/import_directions.py")
            continue
        text = file.read_text(encoding="utf-8")
        for match in _INCLUDE.finditer(text):
            other = match[1].split("/")[0]
            if "/" not in match[1] or other not in INCLUDES[folder]:
                line = text.count("\n", 0, match.start(1)) + 1
                allowed = ", ".join(sorted(INCLUDES[folder]))
                found.append(f'{shown}:{line}: includes "{match[1]}", allowed are: {allowed}')
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent
    )
    root = parser.parse_args(argv).root
    found = check_python(root) + check_cpp(root)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
