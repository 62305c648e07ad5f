"""The series on another release, patch by patch; and the dry run, which only tells."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from series import build_commits, read_series
from upstream import Git, Layout, Pin, Variant, commit_release, obtain_wheel, parse_pin

from .hunks import Fate, fate
from .merge import Conflict, merge, settle
from .repin import repin, requirement_notes


@dataclass(frozen=True)
class Step:
    """What a patch becomes on the new release."""

    name: str
    fate: Fate
    conflicts: tuple[Conflict, ...]
    commit: str | None
    """The new commit; None if upstream has all of it already."""


@dataclass(frozen=True)
class Source:
    """The series that is replayed, as commits in a repository."""

    base: str
    commits: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def head(self) -> str:
        return self.commits[-1] if self.commits else self.base


def source(git: Git, layout: Layout, pin: Pin, variant: Variant) -> Source:
    """Makes upstream's release and our series on it in `git`. The same commits every time."""
    base = commit_release(git, pin, variant, obtain_wheel(layout, pin, variant))
    patches = read_series(layout, pin.version)
    head = build_commits(git, patches, layout, pin.version, base)
    git.raw("update-ref", "refs/releases/series", head)
    commits = git.text("rev-list", "--reverse", f"{base}..{head}").split()
    return Source(base, tuple(commits), tuple(patch.name for patch in patches))


def step(git: Git, name: str, patch: str, head: str) -> Step:
    """One patch on `head`. In conflict, the new commit holds our side of what conflicts."""
    merged = merge(git, patch, head)
    told = fate(git, patch, head, merged)
    tree = settle(git, merged, ours=True)
    if tree == git.text("rev-parse", f"{head}^{{tree}}"):
        return Step(name, told, merged.conflicts, None)
    message = git.raw("log", "-1", "--format=%B", patch)
    return Step(name, told, merged.conflicts, commit(git, tree, head, message))


def commit(git: Git, tree: str, parent: str, message: bytes) -> str:
    return git.text("commit-tree", tree, "-p", parent, stdin=message.rstrip(b"\n") + b"\n")


def steps(git: Git, of: Source, onto: str) -> Iterator[Step]:
    """All patches. After a conflict our side of it stands, so that each conflict is told once."""
    for name, patch in zip(of.names, of.commits, strict=True):
        made = step(git, name, patch, onto)
        yield made
        onto = made.commit or onto


@dataclass(frozen=True)
class Trial:
    """A dry run's result."""

    steps: list[Step]
    notes: list[str]
    """What a person must look at beside the patches."""

    @property
    def applies(self) -> bool:
        return not any(made.conflicts for made in self.steps)


def dry_run(layout: Layout, pin: Pin, to: str, variant: str | None = None) -> Trial:
    """Replays the series on `to` in a repository of its own. Writes nothing but fetched wheels."""
    place, text = repin(layout, pin, to)
    target = parse_pin(place, text)
    name = variant or pin.fitting().name
    old, new = pin.variant(name), target.variant(name)
    wheel = obtain_wheel(place, target, new)
    with tempfile.TemporaryDirectory(prefix="upgrade-") as folder:
        git = Git(Path(folder))
        git.raw("init", "--quiet", "--bare", "--template=", ".")
        of = source(git, layout, pin, old)
        made = list(steps(git, of, commit_release(git, target, new, wheel)))
    return Trial(made, requirement_notes(target, name, obtain_wheel(layout, pin, old), wheel))
