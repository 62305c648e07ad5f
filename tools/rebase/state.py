"""An upgrade in progress: one file beside the new pin, replaced whole, and a lock."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from upstream import Layout, Refusal

# Exit status of a command that met a conflict: 1 is a refusal, 2 wrong use of the command line.
CONFLICT = 3
_FILE = "rebase.json"

# Phases, in order. What a run that is cut short in one has left is said in upgrade.py.
STARTING = "starting"
REPLAYING = "replaying"
PICKING = "picking"
STOPPED = "stopped"
COMMITTING = "committing"
EXPORTING = "exporting"
ABORTING = "aborting"
ADOPTING = "adopting"


@dataclass
class Done:
    """A patch of the old series that has found its place."""

    name: str
    how: str
    """clean, moved, by hand, needless"""
    commits: list[str]
    """What it became: one commit; none if needless; several if a person made several."""


@dataclass
class Upgrade:
    """Where an upgrade is. Commits of the old series are made anew in each run, always the same."""

    engine: str
    old: str
    """Version of the series that is replayed."""
    to: str
    variant: str
    phase: str = STARTING
    series: str = ""
    """The commit that the old series ends in, once it was made; it names all of the series."""
    done: list[Done] = field(default_factory=list)

    def head(self, base: str) -> str:
        """The last commit of what is done; `base` if nothing is."""
        made = [commit for done in self.done for commit in done.commits]
        return made[-1] if made else base

    def save(self, layout: Layout, phase: str) -> None:
        """Writes the state, with this phase, whole or not at all."""
        self.phase = phase
        write_whole(layout.home / _FILE, json.dumps(asdict(self), indent=1) + "\n")

    def forget(self, layout: Layout) -> None:
        (layout.home / _FILE).unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """The file has its old content or this, whenever the program or the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.new")
    with part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def _read(path: Path) -> Upgrade:
    data = json.loads(path.read_text(encoding="utf-8"))
    data["done"] = [Done(**entry) for entry in data["done"]]
    return Upgrade(**data)


def find_upgrade(layout: Layout, to: str | None) -> Upgrade | None:
    """The engine's upgrade in progress to the release `to`, or the only one; None if there is none.

    Raises Refusal if there are several and `to` does not say which.
    """
    paths = sorted(layout.engine_home.glob(f"*/{_FILE}"))
    found = [upgrade for upgrade in map(_read, paths) if to in (None, upgrade.to)]
    if len(found) > 1:
        names = ", ".join(upgrade.to for upgrade in found)
        raise Refusal(layout.engine, f"has {len(found)} upgrades in progress", f"--to: {names}")
    return found[0] if found else None


@contextmanager
def locked(layout: Layout) -> Iterator[int]:
    """One run at a time for an engine. Yields a descriptor: who holds it open holds the lock, so
    git processes that inherit it are waited for even if we die."""
    layout.engine_home.mkdir(parents=True, exist_ok=True)
    path = layout.engine_home / ".rebase.lock"
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(
                layout.shown(path),
                f"another run of rebase_patches.py is at work on {layout.engine}",
                "wait until it has ended",
            ) from None
        yield stream.fileno()
