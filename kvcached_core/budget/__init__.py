"""Who holds how much of one device's memory, and who may have more.

The record is a file in shared memory, one per device; `Budget` is one process's view of it.
"""

from kvcached_core._native import Budget, BudgetError, CapacityConflict, Grant, RowInfo

from .record import default_directory, host_capacity, open_host_budget

__all__ = [
    "Budget",
    "BudgetError",
    "CapacityConflict",
    "Grant",
    "RowInfo",
    "default_directory",
    "host_capacity",
    "open_host_budget",
]
