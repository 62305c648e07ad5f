"""How many lines the series adds to and removes from upstream's files: the debt, kept in view."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from upstream import Pin, Refusal

from .patch import FileChange


@dataclass(frozen=True)
class Cost:
    """Lines of one patch. `new` counts lines of files that upstream does not have."""

    name: str
    added: int
    removed: int
    new: int


def costs(found: dict[str, list[FileChange]], upstream: Collection[str]) -> list[Cost]:
    """The cost of each patch, in order. `upstream` holds the paths of the pristine tree."""
    return [
        Cost(
            name,
            added=sum(len(c.added) for c in files if c.path in upstream),
            removed=sum(len(c.removed) for c in files if c.path in upstream),
            new=sum(len(c.added) - len(c.removed) for c in files if c.path not in upstream),
        )
        for name, files in found.items()
    ]


def table(rows: list[Cost], pin: Pin) -> str:
    """The counts as text: one line a patch, then the sums beside what is allowed."""
    added, removed, new = (sum(getattr(r, f) for r in rows) for f in ("added", "removed", "new"))
    width = max([len(r.name) for r in rows] + [len("of at most")])
    lines = [f"{'patch':<{width}}  {'added':>6} {'removed':>8} {'in new files':>13}"]
    lines += [f"{r.name:<{width}}  {r.added:>6} {r.removed:>8} {r.new:>13}" for r in rows]
    lines.append(f"{'sum':<{width}}  {added:>6} {removed:>8} {new:>13}")
    limits = f"{pin.budget_added:>6} {pin.budget_removed:>8}"
    lines.append(f"{'of at most':<{width}}  {limits} {'-':>13}")
    return "\n".join(lines)


def check_budget(rows: list[Cost], pin: Pin, where: str) -> None:
    """Refuses a series that adds to or removes from upstream's files more than the pin allows."""
    added, removed = sum(r.added for r in rows), sum(r.removed for r in rows)
    for what, have, most in (
        ("adds", added, pin.budget_added),
        ("removes", removed, pin.budget_removed),
    ):
        if have > most:
            raise Refusal(
                where,
                f"{what} {have} lines in upstream's files, at most {most} are allowed",
                "move substance into kvcached_core and keep the hook to a line",
            )
