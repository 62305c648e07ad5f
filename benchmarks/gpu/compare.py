"""Elastic against static: ratios of latencies, and whether they are within what is allowed."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

# The most that elastic may be of static, of both TTFT and TPOT.
ALLOWED = {"p50": 1.03, "p99": 1.10}


def compare(files: list[Path]) -> int:
    """Prints a line a figure for pairs of a static and an elastic run; 0 if all is as wanted.

    With more than one pair what counts is the mean of the pairs' ratios (the same pair with the
    GPUs exchanged cancels what one of them is faster by). A run with failed requests or
    preemptions (somebody was short of memory) compares nothing.
    """
    runs = [json.loads(path.read_text()) for path in files]
    if not runs or len(runs) % 2 or [run["mode"] for run in runs] != _modes(len(runs)):
        raise SystemExit("give pairs of files: one of --mode static, then one of --mode elastic")
    bad = [fault for path, run in zip(files, runs, strict=True) for fault in _faults(path, run)]
    for what in ("ttft_ms", "tpot_ms"):
        for part in ("mean", "p50", "p90", "p99", "max"):
            pairs = [(s[what][part], e[what][part]) for s, e in _paired(runs)]
            ratio = statistics.fmean(elastic / static for static, elastic in pairs)
            values = "  ".join(f"{static:9.3f} {elastic:9.3f}" for static, elastic in pairs)
            limit = ALLOWED.get(part)
            late = limit is not None and ratio > limit
            bad += [f"{what} {part} is {ratio:.4f} of static's"] * late
            note = "" if limit is None else f"  (at most {limit}: {'NO' if late else 'yes'})"
            print(f"{what} {part:4}  {values}  ratio {ratio:.4f}{note}")
    for what in ("idle", "peak"):
        print(f"device MiB {what}:", *(run["device_mib"][what] for run in runs))
    print("RESULT", "within" if not bad else "; ".join(bad))
    return int(bool(bad))


def _modes(count: int) -> list[str]:
    return ["static", "elastic"] * (count // 2)


def _paired(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(zip(runs[::2], runs[1::2], strict=True))


def _faults(path: Path, run: dict[str, Any]) -> list[str]:
    found = []
    if run["failed"]:
        found.append(f"{path}: {run['failed']} requests failed, such as {run['errors'][0]}")
    if any(run["preemptions"]):
        found.append(f"{path}: preemptions {run['preemptions']}, somebody was short of memory")
    cache = run.get("cache_mib")
    if cache and cache["peak"] > cache["capacity"]:
        found.append(f"{path}: {cache['peak']} MiB of cache in a budget of {cache['capacity']}")
    return found
