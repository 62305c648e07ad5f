"""Engine upgrades: a series replayed on another release of its engine, by three-way merge."""

from .adopt import adopt
from .latest import check_latest, table
from .plan import dry_run
from .report import lines, total
from .state import CONFLICT, Upgrade, find_upgrade, locked
from .upgrade import abort, go_on, start

__all__ = [
    "CONFLICT",
    "Upgrade",
    "abort",
    "adopt",
    "check_latest",
    "dry_run",
    "find_upgrade",
    "go_on",
    "lines",
    "locked",
    "start",
    "table",
    "total",
]
