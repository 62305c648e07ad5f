#!/usr/bin/env python3
"""Mapped memory against the packed floor on the multi-turn load, over page sizes and bounds.

PYTHONPATH=tests python benchmarks/packing.py docs/benchmarks/packing.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvcached_core.pool import GrowthPolicy
from kvcached_core.pool.replay import Replay
from support.multi_turn import Load, MultiTurn

# A block of 16 tokens of Llama-3.1-8B takes 2 MiB over all layers: 8,192 are 16 GiB.
NUM_BLOCKS = 8192
BLOCKS_PER_PAGE = (1, 4, 8, 16, 32)
BOUNDS = {"none": None, "8GiB": 4096, "2GiB": 1024, "0B": 0}
RESERVE_PAGES = 2


def play(records: list[Any], per_page: int, bound_blocks: int | None) -> dict[str, Any]:
    bound = None if bound_blocks is None else bound_blocks // per_page
    replay = Replay(NUM_BLOCKS, per_page, GrowthPolicy(RESERVE_PAGES), bound)
    totals = replay.run(records)
    found = {key: value for key, value in vars(totals).items() if key != "samples"}
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    load = Load()
    records = list(MultiTurn(load))
    rows = []
    for bound, blocks in BOUNDS.items():
        for per_page in BLOCKS_PER_PAGE:
            found = play(records, per_page, blocks)
            rows.append({"prefix_bound": bound, "blocks_per_page": per_page, **found})
            print(f"{bound:>5} {per_page:3} a page: mean {found['mean_ratio']:.3f}", flush=True)
    report = {
        "command": "python benchmarks/packing.py",
        "load": asdict(load),
        "num_blocks": NUM_BLOCKS,
        "reserve_pages": RESERVE_PAGES,
        "rows": rows,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
