"""Who holds how much of one device's memory, and who may have more.

The record is a file in shared memory, one per device; `Budget` is one process's view of it.
"""

from kvcached_core._native import (
    Budget,
    BudgetError,
    CapacityConflict,
    Grant,
    Rank,
    RowGone,
    RowInfo,
    Segment,
    read_segment,
)

from .instance import create_segment, open_device_budget, remove_segment, sockets_folder
from .record import default_directory, host_capacity, open_host_budget, open_record

__all__ = [
    "Budget",
    "BudgetError",
    "CapacityConflict",
    "Grant",
    "Rank",
    "RowGone",
    "RowInfo",
    "Segment",
    "create_segment",
    "default_directory",
    "host_capacity",
    "open_device_budget",
    "open_host_budget",
    "open_record",
    "read_segment",
    "remove_segment",
    "sockets_folder",
]
