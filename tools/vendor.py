#!/usr/bin/env python3
"""Materialises a pinned upstream release in the tree/ beside its pin, hash checked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from series import read_files, unexported
from upstream import (
    Git,
    Layout,
    Pin,
    Refusal,
    Variant,
    add_engine,
    command_line,
    materialise,
    obtain_wheel,
    run,
    stamp,
    uncommitted,
    verify,
)


def _guard(layout: Layout, made: dict[str, str] | None) -> None:
    """Refuses to overwrite work that exists nowhere else."""
    shown = layout.shown(layout.tree)
    if made is None:
        raise Refusal(shown, "is there but is no tree of ours", "move it away, or pass --force")
    git = Git(layout.tree)
    dirty = uncommitted(git)
    if dirty:
        raise Refusal(
            shown,
            f"has {len(dirty)} uncommitted edits ({dirty[0]})",
            "commit and export them, or pass --force to lose them",
        )
    extra = unexported(git, shown, read_files(layout, made.get("version", "")))
    if extra:
        raise Refusal(
            shown, f"holds unexported patches ({extra[0]})", "export them, or pass --force"
        )


def vendor(layout: Layout, pin: Pin, variant: Variant, given: Path | None, force: bool) -> str:
    """Makes the tree if it is not there yet; returns what was done, for a person."""
    wheel = obtain_wheel(layout, pin, variant, given)
    made, shown = stamp(layout), layout.shown(layout.tree)
    if layout.tree.exists() and not force:
        if made is not None and made.get("sha256") == variant.sha256:
            return f"{shown}: is {variant.package} {pin.version} already, left as it is"
        _guard(layout, made)
    materialise(layout, pin, variant, wheel)
    return f"{shown}: made from {variant.file} (sha256 {variant.sha256})"


def check(layout: Layout, pin: Pin, variant: Variant) -> str:
    """Verifies an existing tree against its wheel; changes nothing."""
    shown, todo = layout.shown(layout.tree), f"run tools/vendor.py {layout.label}"
    made = stamp(layout)
    if made is None:
        raise Refusal(shown, "no materialised tree here", todo)
    if made.get("sha256") != variant.sha256:
        raise Refusal(
            shown,
            f"made from sha256 {made.get('sha256')}, expected {variant.sha256} ({variant.file})",
            todo,
        )
    if not (layout.wheels / variant.file).is_file():
        raise Refusal(layout.shown(layout.wheels / variant.file), "not there", todo)
    verify(layout, obtain_wheel(layout, pin, variant))
    return f"{shown}: its pristine commit is {variant.package} {pin.version}, file by file"


def _vendor(args: argparse.Namespace, layout: Layout, pin: Pin) -> None:
    variant = pin.variant(args.variant) if args.variant else pin.fitting()
    if args.check:
        print(check(layout, pin, variant))
    else:
        print(vendor(layout, pin, variant, args.wheel, args.force))


def main(argv: list[str] | None = None) -> int:
    parser = command_line("vendor.py", __doc__)
    add_engine(parser)
    parser.add_argument("--variant", help="which of the pinned wheels (the first that fits here)")
    parser.add_argument("--wheel", type=Path, help="use this file instead of asking pip for it")
    parser.add_argument("--check", action="store_true", help="verify the tree, change nothing")
    parser.add_argument("--force", action="store_true", help="overwrite the tree, edits and all")
    args = parser.parse_args(argv)
    if args.check and (args.force or args.wheel):
        parser.error("--check changes nothing: leave out --force and --wheel")
    return run(args, _vendor)


if __name__ == "__main__":
    sys.exit(main())
