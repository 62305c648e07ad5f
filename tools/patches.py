#!/usr/bin/env python3
"""The patch series of an engine: apply it to the tree, export the tree's commits, check, show."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from series.apply import apply
from series.export import export
from upstream import Git, Layout, Pin, Refusal, load_pin, open_tree

ROOT = Path(__file__).resolve().parent.parent


def _apply(args: argparse.Namespace, layout: Layout, pin: Pin, git: Git) -> None:
    count = apply(layout, pin, git, args.force)
    print(f"{layout.shown(layout.tree)}: {count} patches applied")


def _export(args: argparse.Namespace, layout: Layout, pin: Pin, git: Git) -> None:
    patches, written, stale = export(layout, pin, git)
    folder = layout.shown(layout.series(pin.version))
    for name in written:
        print(f"{folder}/{name}: written")
    for name in stale:
        print(f"{folder}/{name}: removed")
    print(f"{folder}: {len(patches)} patches")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="patches.py", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("apply", help="bring the tree to the series, a commit a patch")
    one.add_argument("--force", action="store_true", help="lose uncommitted and unexported work")
    one.set_defaults(run=_apply)
    one = commands.add_parser("export", help="write the tree's commits as the series")
    one.set_defaults(run=_export)
    for command in commands.choices.values():
        command.add_argument("engine", help="a folder of vendored/, such as vllm")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    layout = Layout(args.root.resolve(), args.engine)
    try:
        pin = load_pin(layout)
        args.run(args, layout, pin, open_tree(layout, pin))
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
