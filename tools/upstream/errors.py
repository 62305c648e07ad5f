"""The one failure that the tools report to a person."""

from __future__ import annotations


class Refusal(Exception):
    """Something found in the repository is not what it must be.

    Printed as one line, `where: what; to do`. The command that met it exits with status 1;
    wrong use of a command line is argparse's affair and exits with status 2.
    """

    def __init__(self, where: object, what: str, todo: str) -> None:
        super().__init__(f"{where}: {what}; {todo}")
