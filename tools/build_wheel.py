#!/usr/bin/env python3
"""Repacks the pinned wheel of an engine, with the series applied, as our wheel."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from repack import build, overlay
from upstream import Layout, Refusal, load_pin, obtain_wheel, open_tree

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="build_wheel.py", description=__doc__)
    parser.add_argument("engine", help="a folder of vendored/, such as vllm")
    parser.add_argument("--variant", required=True, help="which of the pinned wheels: cpu or cuda")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="a folder (%(default)s)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    layout = Layout(args.root.resolve(), args.engine)
    try:
        pin = load_pin(layout)
        variant = pin.variant(args.variant)
        laid = overlay(layout, pin, open_tree(layout, pin))
        wheel = obtain_wheel(layout, pin, variant)
        print(build(layout, pin, variant, wheel, laid, args.out))
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
