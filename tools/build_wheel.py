#!/usr/bin/env python3
"""Repacks the pinned wheel of an engine, with the series applied, as our wheel."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from repack import build, overlay
from upstream import Layout, Pin, add_engine, command_line, obtain_wheel, open_tree, run


def _build(args: argparse.Namespace, layout: Layout, pin: Pin) -> None:
    variant = pin.variant(args.variant)
    laid = overlay(layout, pin, open_tree(layout, pin))
    wheel = obtain_wheel(layout, pin, variant)
    print(build(layout, pin, variant, wheel, laid, args.out))


def main(argv: list[str] | None = None) -> int:
    parser = command_line("build_wheel.py", __doc__)
    add_engine(parser)
    parser.add_argument("--variant", required=True, help="which of the pinned wheels")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="a folder (%(default)s)")
    return run(parser.parse_args(argv), _build)


if __name__ == "__main__":
    sys.exit(main())
