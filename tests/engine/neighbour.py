"""A member of a budget that is no engine: it only needs memory. Stands for a second engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kvcached_core.budget import Budget, Grant

PLENTY = 2**62  # free bytes of the device: not what limits here
DEADLINE_S = 30.0  # guards against a hang; the time it took is in the answer


def need_memory(directory: Path, device: str, want: int) -> dict[str, Any]:
    """Asks for `want` bytes until they are granted, then gives them back.

    Answers whether the first attempt was refused, the seconds until the grant, and the rows of the
    others at that instant.
    """
    budget = Budget.open(str(directory), device, 0, 0)
    row = budget.join("neighbour", 0, want, 0, 0, 100)
    began = time.monotonic()
    grant = budget.lease(row, want, PLENTY, 100)
    refused = grant != Grant.GRANTED
    budget.set_want(row, want)
    while grant != Grant.GRANTED and time.monotonic() - began < DEADLINE_S:
        time.sleep(0.005)
        grant = budget.lease(row, want, PLENTY, 100)
    seconds = time.monotonic() - began
    others = {r.instance: r.lease for r in budget.rows() if r.instance != "neighbour"}
    if grant == Grant.GRANTED:
        budget.unlease(row, want)
    budget.leave(row)
    return {
        "refused_first": refused,
        "granted": grant == Grant.GRANTED,
        "seconds": seconds,
        "leases": others,
    }
