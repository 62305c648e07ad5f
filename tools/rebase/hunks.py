"""What became of the hunks of a patch on another base."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from series.export import DIFF_OPTIONS
from upstream import Git

from .merge import Merged, settle

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_FILE = re.compile(rb"diff --git a/(.+) b/\1")


@dataclass(frozen=True)
class Hunk:
    path: str
    at: int
    """Line of the file before the patch."""
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


@dataclass
class Fate:
    """Hunks of one patch, counted by what became of them."""

    same: int = 0
    """At the same lines."""
    moved: dict[str, list[int]] = field(default_factory=dict)
    """Path -> by how many lines, a hunk each."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Files that upstream renamed: old path -> new path; their hunks count as moved."""
    changed: int = 0
    """Merged, but not to the same lines: part of the hunk stands upstream already."""
    conflict: int = 0

    @property
    def hunks(self) -> int:
        return self.same + sum(map(len, self.moved.values())) + self.changed + self.conflict


def hunks_of(git: Git, before: str, after: str) -> list[Hunk]:
    raw = git.raw("diff-tree", "-r", *DIFF_OPTIONS, f"{before}^{{tree}}", f"{after}^{{tree}}")
    return list(_parse(raw.split(b"\n")))


def _parse(lines: list[bytes]) -> Iterator[Hunk]:
    path, at = "", 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if named := _FILE.fullmatch(line):
            path = named[1].decode(errors="replace")
        elif head := _HUNK.match(line):
            minus, plus = (1 if n is None else int(n) for n in head.groups()[1:])
            sides: dict[bytes, list[bytes]] = {b"-": [], b"+": []}
            while at < len(lines) and lines[at][:1] in (b"-", b"+", b"\\"):
                if (len(sides[b"-"]), len(sides[b"+"])) == (minus, plus):
                    break
                sides.get(lines[at][:1], []).append(lines[at][1:])
                at += 1
            yield Hunk(path, int(head[1]), tuple(sides[b"-"]), tuple(sides[b"+"]))


def fate(git: Git, patch: str, head: str, merged: Merged) -> Fate:
    """Compares what the commit `patch` did to its parent with what the merge does to `head`."""
    left = hunks_of(git, head, settle(git, merged, ours=False))
    told, homeless, homes = Fate(), [], dict[str, str]()
    for hunk in hunks_of(git, f"{patch}^", patch):
        path = homes.setdefault(hunk.path, _home(git, head, hunk, left))
        match = next((h for h in left if h.path == path and _alike(h, hunk)), None)
        if match is None:
            homeless.append(hunk)
            continue
        left.remove(match)
        if path == hunk.path and match.at == hunk.at:
            told.same += 1
        else:
            told.moved.setdefault(hunk.path, []).append(match.at - hunk.at)
    told.renamed = {old: new for old, new in homes.items() if old != new}
    torn = {conflict.path for conflict in merged.conflicts}
    for hunk in homeless:
        if torn & {hunk.path, homes[hunk.path]}:
            told.conflict += 1
        else:
            told.changed += 1
    return told


def _home(git: Git, head: str, hunk: Hunk, found: list[Hunk]) -> str:
    """Where upstream has the hunk's file now: the merge followed a renamed one."""
    if git.raw("ls-tree", head, "--", hunk.path):
        return hunk.path
    return next((h.path for h in found if _alike(h, hunk)), hunk.path)


def _alike(one: Hunk, other: Hunk) -> bool:
    return (one.removed, one.added) == (other.removed, other.added)
