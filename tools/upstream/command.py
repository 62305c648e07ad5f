"""The ends that the tools' command lines have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from .errors import Refusal
from .layout import Layout
from .pin import Pin, find_layout, load_pin

_ROOT = Path(__file__).resolve().parents[2]


def command_line(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with what all tools take: the repository's root, for tests."""
    parser = argparse.ArgumentParser(prog=name, description=doc)
    parser.add_argument("--root", type=Path, default=_ROOT, help=argparse.SUPPRESS)
    return parser


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine",
        metavar="ENGINE[==VERSION]",
        help="a pin: vllm for the default one of vllm, vllm==0.26.0 for that of this version",
    )


def run(
    args: argparse.Namespace, body: Callable[[argparse.Namespace, Layout, Pin], int | None]
) -> int:
    """Runs a tool on the pin that `args.engine` names; returns its exit status, as `report`."""

    def on_pin() -> int | None:
        layout = find_layout(args.root.resolve(), args.engine)
        return body(args, layout, load_pin(layout))

    return report(on_pin)


def report(body: Callable[[], int | None]) -> int:
    """The exit status of `body`: what it returns, 0 for None.

    A Refusal is one line on standard error and status 1.
    """
    try:
        return body() or 0
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
