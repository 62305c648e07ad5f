#!/usr/bin/env python3
"""Takes the series of an engine to another release: replays it there by three-way merge.

Exit status: 0 done, 1 refused, 2 wrong use, 3 a patch is in conflict.
"""

from __future__ import annotations

import argparse
import sys

from packaging.version import Version
from rebase import (
    CONFLICT,
    Upgrade,
    abort,
    adopt,
    check_latest,
    dry_run,
    find_upgrade,
    go_on,
    lines,
    locked,
    start,
    table,
    total,
)
from upstream import (
    GitError,
    Layout,
    Pin,
    Refusal,
    command_line,
    engines,
    find_layout,
    is_version,
    load_pin,
    pin_versions,
    report,
)


def _dry_run(layout: Layout, pin: Pin, args: argparse.Namespace) -> int:
    trial = dry_run(layout, pin, args.to, args.variant)
    for step in trial.steps:
        print("\n".join(lines(step, args.to)))
    for note in trial.notes:
        print(note)
    print(f"{layout.engine} {pin.version} -> {args.to}: {total(trial.steps)}")
    return 0 if trial.applies else CONFLICT


def _in_progress(layout: Layout, to: str | None) -> Upgrade:
    upgrade = find_upgrade(layout, to)
    if upgrade is None:
        raise Refusal(layout.engine, "no upgrade is in progress", "start one: --to VERSION")
    return upgrade


def _continue(layout: Layout, upgrade: Upgrade, lock: int) -> int:
    old = find_layout(layout.root, f"{layout.engine}=={upgrade.old}")
    return go_on(old, load_pin(old), upgrade, lock)


def _abort(layout: Layout, upgrade: Upgrade) -> int:
    abort(layout, upgrade)
    print(
        f"{layout.engine}=={upgrade.to}: the upgrade is undone, its pin, tree and series are gone"
    )
    return 0


def _latest(args: argparse.Namespace) -> int:
    root, rows = args.root.resolve(), []
    for wanted in [args.engine] if args.engine else engines(root):
        layout = find_layout(root, wanted)
        if "==" not in wanted:  # what is newest here has the least way to go
            newest = max(pin_versions(layout), key=Version)
            layout = find_layout(root, f"{layout.engine}=={newest}")
        rows += check_latest(layout, load_pin(layout), args.releases)
    print(table(rows), end="")
    return 0 if all(row.applies for row in rows) else CONFLICT


def _run(args: argparse.Namespace) -> int:
    if args.check_latest:
        return _latest(args)
    layout = find_layout(args.root.resolve(), args.engine)
    default = find_layout(args.root.resolve(), layout.engine)
    load_pin(default)
    if args.dry_run:
        return _dry_run(layout, load_pin(layout), args)
    with locked(layout) as lock:
        if args.go_on:
            return _continue(default, _in_progress(layout, args.to), lock)
        if args.abort:
            return _abort(default, _in_progress(layout, args.to))
        if args.adopt:
            print(adopt(default, args.to))
            return 0
        return start(layout, load_pin(layout), args.to, args.variant, lock)


def _parser() -> argparse.ArgumentParser:
    parser = command_line("rebase_patches.py", __doc__)
    parser.add_argument(
        "engine",
        nargs="?",
        metavar="ENGINE[==VERSION]",
        help="the pin whose series is replayed; --check-latest without it looks at all engines",
    )
    parser.add_argument("--to", metavar="VERSION", help="the release to go to")
    parser.add_argument("--variant", help="the wheel whose files are merged (the first that fits)")
    parser.add_argument(
        "--releases", type=int, default=1, help="how many --check-latest tries (%(default)s)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only report what would happen")
    what.add_argument(
        "--continue", dest="go_on", action="store_true", help="a conflict is resolved: go on"
    )
    what.add_argument("--abort", action="store_true", help="undo an upgrade that is in progress")
    what.add_argument("--adopt", action="store_true", help="make --to the default pin")
    what.add_argument(
        "--check-latest", action="store_true", help="would the series apply to newer releases?"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.engine is None and not args.check_latest:
        parser.error("name an engine")
    if args.to is None and not (args.go_on or args.abort or args.check_latest):
        parser.error("--to VERSION says which release")
    if args.to is not None and (args.check_latest or not is_version(args.to)):
        parser.error(f"--to {args.to}: not a version here")

    def body() -> int:
        try:
            return _run(args)
        except GitError as error:
            raise Refusal(args.engine, str(error), "see what git says, then --continue") from error

    return report(body)


if __name__ == "__main__":
    sys.exit(main())
