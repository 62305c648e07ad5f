#!/usr/bin/env python3
"""Shortens pytest-benchmark's JSON to what docs/benchmarks keeps: medians, machine, versions.

pytest benchmarks --benchmark-json=raw.json
python benchmarks/summary.py raw.json docs/benchmarks/queue-and-hooks.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("kvcached-core", "kvcached-vllm-cpu", "torch", "pytest-benchmark")


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, Any]:
    """What figures depend on, without the machine's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    groups: dict[str, dict[str, Any]] = {}
    for found in json.loads(args.raw.read_text(encoding="utf-8"))["benchmarks"]:
        stats = found["stats"]
        groups.setdefault(found["group"], {})[found["name"]] = {
            "median_us": round(stats["median"] * 1e6, 3),
            "min_us": round(stats["min"] * 1e6, 3),
            "rounds": stats["rounds"],
        }
    report = {
        "command": "pytest benchmarks --benchmark-json=raw.json",
        **environment(),
        "groups": dict(sorted(groups.items())),
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
