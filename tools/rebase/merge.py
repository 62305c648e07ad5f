"""One patch on another base: git's three-way merge, in the object database only."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from series import read_blobs
from upstream import Git, GitError


@dataclass(frozen=True)
class Region:
    """Lines that both sides changed: from the first marker to the last, in the merged file."""

    first: int
    last: int
    upstream: tuple[str, ...]
    ours: tuple[str, ...]


@dataclass(frozen=True)
class Conflict:
    """A file of the patch that git could not merge."""

    path: str
    what: str
    """In words; empty if it is a matter of `regions`."""
    regions: tuple[Region, ...]
    keep_upstream: tuple[str, str] | None
    keep_ours: tuple[str, str] | None
    """(mode, blob) of the file with every region settled one way; None where it is absent then."""


@dataclass(frozen=True)
class Merged:
    tree: str
    """With conflict markers where there are conflicts."""
    conflicts: tuple[Conflict, ...]


def merge(git: Git, patch: str, head: str) -> Merged:
    """What the commit `patch` does to its parent, done to the commit `head`. Moves nothing."""
    # Commits of their own make the parent the one merge base, whatever the history is.
    base = _commit(git, f"{patch}^")
    sides = [_commit(git, head, base), _commit(git, patch, base)]
    out = git.text("merge-tree", "--write-tree", "--no-messages", "-z", *sides, allow=(0, 1))
    tree, *entries = out.split("\0")
    stages: dict[str, dict[int, tuple[str, str]]] = {}
    for entry in filter(None, entries):
        meta, _, path = entry.partition("\t")
        mode, blob, stage = meta.split(" ")
        stages.setdefault(path, {})[int(stage)] = (mode, blob)
    found = tuple(_conflict(git, tree, path, of) for path, of in sorted(stages.items()))
    return Merged(tree, found)


def _commit(git: Git, tree_of: str, *parents: str) -> str:
    options = [part for parent in parents for part in ("-p", parent)]
    return git.text("commit-tree", f"{tree_of}^{{tree}}", *options, "-m", "side")


def _conflict(git: Git, tree: str, path: str, stages: dict[int, tuple[str, str]]) -> Conflict:
    base, upstream, ours = (stages.get(stage) for stage in (1, 2, 3))
    if upstream is None or ours is None:
        gone = "is gone or renamed upstream" if upstream is None else "is removed by the patch"
        # What upstream took away stays away: a later patch on it is in conflict, too.
        return Conflict(path, gone, (), upstream, None)
    sides = [base[1] if base else None, upstream[1], ours[1]]
    settled = []
    for favour in ("--ours", "--theirs"):  # git's words: the first side is upstream's
        content = _merge_file(git, sides, favour)
        if content is None:
            return Conflict(path, "is binary", (), upstream, ours)
        settled.append((upstream[0], git.text("hash-object", "-w", "--stdin", stdin=content)))
    marked = git.raw("cat-file", "blob", f"{tree}:{path}").decode(errors="replace")
    return Conflict(path, "", tuple(_regions(marked.splitlines())), *settled)


def _merge_file(git: Git, sides: list[str | None], *options: str) -> bytes | None:
    """`git merge-file` on blobs: base, upstream, ours. None if one is binary."""
    contents = iter(read_blobs(git, [side for side in sides if side]))
    with tempfile.TemporaryDirectory(prefix="merge-") as folder:
        names = ("base", "upstream", "ours")
        for name, side in zip(names, sides, strict=True):
            (Path(folder) / name).write_bytes(next(contents) if side else b"")
        files = [str(Path(folder) / name) for name in ("upstream", "base", "ours")]
        try:
            return git.raw("merge-file", "-p", *options, *files, allow=tuple(range(128)))
        except GitError as error:
            if "binary" in error.said:
                return None
            raise


def _regions(marked: list[str]) -> list[Region]:
    found: list[Region] = []
    first, upstream, ours = 0, list[str](), list[str]()
    side: list[str] | None = None
    for number, line in enumerate(marked, 1):
        if line.startswith("<<<<<<< "):
            first, upstream, ours = number, [], []
            side = upstream
        elif line == "=======" and side is upstream:
            side = ours
        elif line.startswith(">>>>>>> ") and side is ours:
            found.append(Region(first, number, tuple(upstream), tuple(ours)))
            side = None
        elif side is not None:
            side.append(line)
    return found


def settle(git: Git, merged: Merged, ours: bool) -> str:
    """The merged tree with each conflict settled for us, or else for upstream."""
    if not merged.conflicts:
        return merged.tree
    lines = []
    for conflict in merged.conflicts:
        kept = conflict.keep_ours if ours else conflict.keep_upstream
        mode, blob = kept or ("0", "0" * 40)
        lines.append(f"{mode} {blob}\t{conflict.path}\n")
    with tempfile.TemporaryDirectory(prefix="merge-") as folder:
        scratch = git.with_env(GIT_INDEX_FILE=str(Path(folder) / "index"))
        scratch.raw("read-tree", merged.tree)
        scratch.raw("update-index", "--index-info", stdin="".join(lines).encode())
        return scratch.text("write-tree")
