#!/usr/bin/env python3
"""The patch series of an engine: apply it to the tree, export the tree's commits, check, show."""

from __future__ import annotations

import argparse
import sys

from series import apply, changes, check, costs, export, read_series, show, table, where
from upstream import (
    PRISTINE,
    Git,
    Layout,
    Pin,
    add_engine,
    blobs,
    command_line,
    open_tree,
    run,
    uncommitted,
)


def _apply(args: argparse.Namespace, layout: Layout, pin: Pin, git: Git) -> int:
    count = apply(layout, pin, git, args.force)
    print(f"{layout.shown(layout.tree)}: {count} patches applied")
    return 0


def _export(args: argparse.Namespace, layout: Layout, pin: Pin, git: Git) -> int:
    dirty = uncommitted(git)
    if dirty:
        where_dirty = f"{layout.shown(layout.tree)}: {len(dirty)} uncommitted edits ({dirty[0]})"
        print(f"{where_dirty} are not exported", file=sys.stderr)
    patches, written, stale = export(layout, pin, git, args.force)
    folder = layout.shown(layout.series(pin.version))
    for name in written:
        print(f"{folder}/{name}: written")
    for name in stale:
        print(f"{folder}/{name}: removed")
    print(f"{folder}: {len(patches)} patches")
    return 0


def _check(args: argparse.Namespace, layout: Layout, pin: Pin, git: Git) -> int:
    report = check(layout, pin, git, args.static_test)
    for note in report.notes:
        print(note)
    for failure in report.failures:
        print(failure, file=sys.stderr)
    if not report.failures:
        print(f"{layout.shown(layout.series(pin.version))}: every check holds")
    return 1 if report.failures else 0


def _show(args: argparse.Namespace, layout: Layout, pin: Pin, git: Git) -> int:
    sys.stdout.buffer.write(show(layout, pin, git, args.patch, args.context))
    return 0


def _budget(args: argparse.Namespace, layout: Layout, pin: Pin, git: Git) -> int:
    patches = read_series(layout, pin.version)
    found = {p.name: changes(where(layout, pin.version, p.name), p.diff) for p in patches}
    print(table(costs(found, blobs(git, PRISTINE)), pin))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line("patches.py", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("apply", help="bring the tree to the series, a commit a patch")
    one.add_argument("--force", action="store_true", help="lose uncommitted and unexported work")
    one.set_defaults(run=_apply)
    one = commands.add_parser("export", help="write the tree's commits as the series")
    one.add_argument("--force", action="store_true", help="even if that empties the series")
    one.set_defaults(run=_export)
    one = commands.add_parser("check", help="prove what a series must prove")
    one.add_argument("--static-test", metavar="CMD", help="also run this, the tree on PYTHONPATH")
    one.set_defaults(run=_check)
    one = commands.add_parser("show", help="print one patch with its surroundings")
    one.add_argument("--context", type=int, default=8, help="lines around (%(default)s)")
    one.set_defaults(run=_show)
    one = commands.add_parser("budget", help="count the lines in upstream's files")
    one.set_defaults(run=_budget)
    for command in commands.choices.values():
        add_engine(command)
    commands.choices["show"].add_argument("patch", help="its file name, or its number")
    return parser


def _on_tree(args: argparse.Namespace, layout: Layout, pin: Pin) -> int:
    return int(args.run(args, layout, pin, open_tree(layout, pin)))


def main(argv: list[str] | None = None) -> int:
    return run(_parser().parse_args(argv), _on_tree)


if __name__ == "__main__":
    sys.exit(main())
