"""Elastic against static: ratios of latencies, and whether they are within what is allowed."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

# The most that elastic may be of static, of both TTFT and TPOT.
ALLOWED = {"p50": 1.03, "p99": 1.10}
LEAST = 3  # peaks of each kind

Peak = dict[str, Any]  # of one model in one run: `ttft_ms`, `tpot_ms`


def compare(files: list[Path]) -> int:
    """Prints a line a figure for runs of static and of elastic; 0 if all is as wanted.

    A sample is the peak of one model in one run, so a run gives as many as it has models. What
    counts is the ratio of the medians over the peaks of each kind: one that something else
    disturbed does not decide. The spread of static's peaks is printed beside it. A peak with
    preemptions, which was short of memory, says nothing about latency and is left out, by name;
    failed requests and less than LEAST peaks of a kind are faults.
    """
    runs = [(path, json.loads(path.read_text())) for path in files]
    kinds = {kind: _peaks(runs, kind) for kind in ("static", "elastic")}
    bad = [fault for path, run in runs for fault in _faults(path, run)]
    bad += [f"{len(p)} peaks of {kind}, not {LEAST}" for kind, p in kinds.items() if len(p) < LEAST]
    if all(kinds.values()):
        bad += _figures(**kinds)
    for what in ("idle", "peak"):
        print(f"device MiB {what}:", *(run["device_mib"][what] for _, run in runs))
    print("RESULT", "within" if not bad else "; ".join(bad))
    return int(bool(bad))


def _figures(static: list[Peak], elastic: list[Peak]) -> list[str]:
    """Prints them; what is not as it should be."""
    bad = []
    for what in ("ttft_ms", "tpot_ms"):
        for part in ("mean", "p50", "p90", "p99", "max"):
            theirs, ours = ([peak[what][part] for peak in peaks] for peaks in (static, elastic))
            ratio = statistics.median(ours) / statistics.median(theirs)
            limit = ALLOWED.get(part)
            late = limit is not None and ratio > limit
            bad += [f"{what} {part} is {ratio:.4f} of static's"] * late
            note = "" if limit is None else f"  (at most {limit}: {'NO' if late else 'yes'})"
            print(f"{what} {part:4}  static {_told(theirs)}  elastic {_told(ours)}{note}")
            print(f"{'':13}ratio {ratio:.4f}")
    return bad


def _told(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.2f} ({min(values):.2f} to {max(values):.2f}, {len(values)} peaks)"


def _peaks(runs: list[tuple[Path, Any]], kind: str) -> list[Peak]:
    found = []
    for path, run in runs:
        if run["mode"] != kind:
            continue
        for model, (peak, count) in enumerate(zip(run["models"], run["preemptions"], strict=True)):
            if count:
                print(f"left out: {path}, model {model}: {count} preemptions")
            elif peak:
                found.append(peak)
    return found


def _faults(path: Path, run: dict[str, Any]) -> list[str]:
    found = []
    if run["failed"]:
        found.append(f"{path}: {run['failed']} requests failed, such as {run['errors'][0]}")
    if any(run["preemptions"]) and run["mode"] == "elastic":
        found.append(f"{path}: preemptions {run['preemptions']}, somebody was short of memory")
    cache = run.get("cache_mib")
    if cache and cache["peak"] > cache["capacity"]:
        found.append(f"{path}: {cache['peak']} MiB of cache in a budget of {cache['capacity']}")
    return found
