"""What an engine's segment tells, of a live or dead engine, down to its last page transitions.

``python -m kvcached_core.budget.postmortem NAME``; the file is only read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kvcached_core._native import BudgetError, read_segment
from kvcached_core.budget.instance import (
    instance_of,
    is_locked,
    kept_folder,
    locked,
    open_device_budget,
    running_folder,
    segment_files,
)
from kvcached_core.budget.record import default_directory

_DEFAULT_LAST = 20
_MOST = 4096  # what a segment holds of each writer


class PostmortemError(Exception):
    """What was asked for cannot be told; the text says why and what to do."""


def find_segment(what: str, directory: Path) -> Path:
    """The file `what`, or the newest segment of the engine `what`. Raises PostmortemError."""
    if "\0" in what:
        raise PostmortemError(f"{what!r}: a name or path with a NUL in it; allowed is any other")
    if Path(what).is_file():
        return Path(what)
    files = segment_files(directory, what)
    if files:
        return files[0]
    known = sorted(
        str(path)
        for folder in (running_folder(directory), kept_folder(directory))
        for path in folder.glob("*.segment")
    )
    there = "\n  ".join(["there are:", *known]) if known else "there are no segments at all"
    raise PostmortemError(
        f"{what!r} is no file, and {directory} has no segment of an engine of that name "
        f"(another one: --budget-dir); {there}"
    )


def examine(path: Path, directory: Path, last: int) -> dict[str, Any]:
    """The content of a segment, who lives, and the `last` transitions of all writers.

    `alive` is None where it cannot be known. Raises PostmortemError.
    """
    try:
        report: dict[str, Any] = dict(read_segment(str(path), last))
    except (RuntimeError, ValueError) as error:
        raise PostmortemError(str(error)) from None
    report["transitions"] = report["transitions"][-last:] if last else []
    report["alive"] = _scheduler_lives(path)
    for rank in report["ranks"]:
        rank["alive"] = _rank_lives(rank, path, directory)
    failures = [f"rank {r['rank']}: {r['failure']}" for r in report["ranks"] if r["failure"]]
    report["failure"] = "; ".join(failures)
    return report


def _is_in(path: Path, folder: Callable[[Path], Path]) -> bool:
    parent = path.absolute().parent
    return parent == folder(parent.parent)


def _scheduler_lives(path: Path) -> bool | None:
    """Whether its lock is held; a segment that was moved aside was found without one."""
    if _is_in(path, kept_folder):
        return False
    if not _is_in(path, running_folder):
        return None  # a copy
    try:
        with locked(path.parent):
            return is_locked(path)
    except (OSError, RuntimeError):
        return None


def _rank_lives(rank: dict[str, Any], path: Path, directory: Path) -> bool | None:
    """Whether a live process holds the row of this engine's name and rank."""
    if not rank["joined"]:
        return False
    running = _is_in(path, running_folder)
    name = instance_of(path, running)
    if not running and segment_files(directory, name)[:1] != [path.absolute()]:
        return None  # a copy, or a later engine has that name
    try:
        rows = open_device_budget(directory, rank["device"]).rows()
    except BudgetError:
        return None
    return any((row.instance, row.rank) == (name, rank["rank"]) for row in rows)


def render(report: dict[str, Any]) -> str:
    """The report as people read it; times count back from the newest transition."""
    made = datetime.fromtimestamp(report["made_wall_ns"] / 1e9, timezone.utc)
    lines = [
        f"segment {report['path']}, {report['num_pages']} pages, made "
        f"{made:%Y-%m-%d %H:%M:%S} UTC by process {report['pid']}",
        f"scheduler half: {_life(report['alive'])}; asked for {report['entries_asked']} pages, "
        f"lacks {report['wish_pages']}, holds {report['idle_pages']} that no request uses",
    ]
    lines += [_render_rank(rank) for rank in report["ranks"]]
    lines.append(f"last failure: {report['failure'] or 'none'}")
    transitions = report["transitions"]
    torn = f"; {report['torn']} were being written" if report["torn"] else ""
    lines.append(f"last {len(transitions)} page transitions{torn}:")
    newest = transitions[-1]["time_ns"] if transitions else 0
    lines += [_render_transition(transition, newest) for transition in transitions]
    if transitions:
        lines.append(_age(report, newest))
    return "\n".join(lines)


def _life(alive: bool | None) -> str:
    return {True: "lives", False: "dead", None: "unknown whether it lives"}[alive]


def _render_rank(rank: dict[str, Any]) -> str:
    if not rank["joined"]:
        return f"rank {rank['rank']}: never joined"
    pages = ", ".join(f"{count} {state}" for state, count in rank["pages"].items())
    return (
        f"rank {rank['rank']} on {rank['device']} (row {rank['row']}): {_life(rank['alive'])}; "
        f"pages: {pages}; mapped {rank['mapped_bytes']} of {rank['created_bytes']} bytes created; "
        f"answered {rank['entries_resolved']} pages, released up to epoch {rank['released_epoch']}"
    )


def _render_transition(transition: dict[str, Any], newest: int) -> str:
    who = transition["who"]
    return (
        f"  {(transition['time_ns'] - newest) / 1e6:12.3f} ms  "
        f"{who if who == 'scheduler' else f'rank {who}':<9}  #{transition['sequence']:<8} "
        f"page {transition['page']:<8} {transition['from']:>11} -> {transition['to']:<11} "
        f"epoch {transition['epoch']}"
    )


def _age(report: dict[str, Any], newest: int) -> str:
    """When the newest was, by the clocks that the engine noted when it started."""
    wall = (report["made_wall_ns"] + newest - report["made_monotonic_ns"]) / 1e9
    at = datetime.fromtimestamp(wall, timezone.utc)
    return f"the last at {at:%Y-%m-%d %H:%M:%S.%f} UTC, {max(0.0, time.time() - wall):.1f} s ago"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed are 0 to {_MOST}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kvcached-postmortem", description=__doc__)
    parser.add_argument(
        "what", metavar="PATH-or-NAME", help="a segment's file, or an engine's name"
    )
    parser.add_argument("--budget-dir", type=Path, help="where engines' records lie (their key)")
    parser.add_argument("--json", action="store_true", help="all of it, as JSON")
    parser.add_argument(
        "-n", type=_count, default=_DEFAULT_LAST, metavar="N", help="transitions shown (default 20)"
    )
    given = parser.parse_args(arguments)
    try:
        path = find_segment(given.what, given.budget_dir or default_directory())
        directory = given.budget_dir or _directory_of(path)
        report = examine(path, directory, given.n)
    except PostmortemError as error:
        print(f"kvcached-postmortem: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report) if given.json else render(report))
    return 0


def _directory_of(path: Path) -> Path:
    return path.resolve().parent.parent


if __name__ == "__main__":
    sys.exit(main())
