"""What the rounds of several engines say: medians, ratios to the first engine, noise."""

from __future__ import annotations

import statistics
from typing import Any

Record = dict[str, Any]


def summary(records: dict[str, Record]) -> Record:
    """Of records by name, the engine to compare with first.

    `noise` is the furthest that a round of an engine is from its median. `rounds_ratio` are least
    and greatest of the ratios of two rounds that followed each other. `over_idle_mib` is the most
    of the device that was in use, beyond what was when all engines were idle, a while after a round
    had ended. `change` is that of the rank's counters, over all rounds that tell it.
    """
    baseline = next(iter(records))
    reference = _rates(records[baseline])
    return {
        "baseline": baseline,
        "noise": _noise(list(reference.values())),
        "engines": {name: _engine(record, reference) for name, record in records.items()},
        "failed": {n: r["failed"] for n, r in records.items() if r["failed"]},
    }


def _rates(record: Record) -> dict[int, float]:
    return {made["round"]: made["tokens_per_s"] for made in record["rounds"]}


def _noise(rates: list[float]) -> float | None:
    if not rates:
        return None
    median = statistics.median(rates)
    return round(max(abs(rate / median - 1) for rate in rates), 4)


def _engine(record: Record, reference: dict[int, float]) -> Record:
    rates = _rates(record)
    both = [rates[number] / reference[number] for number in rates if number in reference]
    median = statistics.median(rates.values()) if rates else None
    ratio = median / statistics.median(reference.values()) if median and reference else None
    changes = [made["change"] for made in record["rounds"] if "change" in made]
    mib = [made["mib"] for made in record["rounds"]]
    over = [m["settled"] - m["idle"] for m in mib if None not in m.values()]
    return {
        "median": median,
        "rounds": len(rates),
        "ratio": round(ratio, 4) if ratio else None,
        "rounds_ratio": [round(min(both), 4), round(max(both), 4)] if both else None,
        "noise": _noise(list(rates.values())),
        "over_idle_mib": max(over, default=None),
        "change": {key: sum(change[key] for change in changes) for key in changes[0]}
        if changes
        else None,
    }
