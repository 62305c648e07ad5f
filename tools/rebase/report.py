"""What is told of a replay."""

from __future__ import annotations

from collections.abc import Iterable

from .merge import Conflict
from .plan import Step

_MARGIN = "    "
# Of each side: all of what people can merge by eye. The rest is in the tree.
_SHOWN = 20


def lines(step: Step, to: str) -> list[str]:
    """One patch: what became of it, and of each conflict its lines and both sides."""
    return [f"{step.name}: {verdict(step)}", *_moves(step), *_conflicts(step.conflicts, to)]


def verdict(step: Step) -> str:
    if step.conflicts:
        of = f"{step.fate.conflict} of {_count(step.fate.hunks, 'hunk')}"
        return f"conflict ({of}, in {_count(len(step.conflicts), 'file')})"
    if step.commit is None:
        return "needless, upstream has all of it"
    if step.fate.moved or step.fate.changed:
        return f"moved ({_count(step.fate.hunks, 'hunk')})"
    return f"clean ({_count(step.fate.hunks, 'hunk')})"


def _moves(step: Step) -> list[str]:
    told = []
    for path, by in sorted(step.fate.moved.items()):
        renamed = step.fate.renamed.get(path)
        where = f"{path} (now {renamed})" if renamed else path
        far = f"{min(by):+d}" if min(by) == max(by) else f"{min(by):+d} to {max(by):+d}"
        told.append(f"{_MARGIN}{where}: moved by {far} lines")
    if step.fate.changed:
        told.append(f"{_MARGIN}{_count(step.fate.changed, 'hunk')} merged to other lines: look")
    return told


def _conflicts(conflicts: Iterable[Conflict], to: str) -> list[str]:
    told = []
    for conflict in conflicts:
        if conflict.what:
            told.append(f"{_MARGIN}{conflict.path} {conflict.what}")
        for region in conflict.regions:
            told.append(f"{_MARGIN}{conflict.path} lines {region.first} to {region.last}")
            told.append(f"{_MARGIN}  upstream {to}:")
            told += _side(region.upstream)
            told.append(f"{_MARGIN}  the patch:")
            told += _side(region.ours)
    return told


def _side(side: tuple[str, ...]) -> list[str]:
    told = [f"{_MARGIN}  | {line}" for line in side[:_SHOWN]]
    rest = len(side) - _SHOWN
    return [*told, f"{_MARGIN}  ... {_count(rest, 'line')} more"] if rest > 0 else told


def sums(steps: list[Step]) -> dict[str, int]:
    """Hunks of all patches by what became of them."""
    return {
        "hunks": sum(s.fate.hunks for s in steps),
        "at the same lines": sum(s.fate.same for s in steps),
        "moved": sum(len(by) for s in steps for by in s.fate.moved.values()),
        "merged to other lines": sum(s.fate.changed for s in steps),
        "in conflict": sum(s.fate.conflict for s in steps),
    }


def total(steps: list[Step]) -> str:
    counts = sums(steps)
    torn = sum(bool(s.conflicts) for s in steps)
    rest = ", ".join(f"{number} {what}" for what, number in counts.items() if what != "hunks")
    patches = _count(len(steps), "patch", "patches")
    return f"{patches}, {torn} in conflict; {counts['hunks']} hunks: {rest}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
