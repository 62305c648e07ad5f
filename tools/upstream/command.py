"""The ends that the tools' command lines have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from .errors import Refusal
from .pin import Layout, Pin, load_pin

_ROOT = Path(__file__).resolve().parents[2]


def command_line(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with what all tools take: the repository's root, for tests."""
    parser = argparse.ArgumentParser(prog=name, description=doc)
    parser.add_argument("--root", type=Path, default=_ROOT, help=argparse.SUPPRESS)
    return parser


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", help="a folder of vendored/, such as vllm")


def run(
    args: argparse.Namespace, body: Callable[[argparse.Namespace, Layout, Pin], int | None]
) -> int:
    """Runs a tool on the pin of `args.engine`; returns its exit status, as `report` does."""
    layout = Layout(args.root.resolve(), args.engine)
    return report(lambda: body(args, layout, load_pin(layout)))


def report(body: Callable[[], int | None]) -> int:
    """The exit status of `body`: what it returns, 0 for None.

    A Refusal is one line on standard error and status 1.
    """
    try:
        return body() or 0
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
