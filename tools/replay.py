#!/usr/bin/env python3
"""Plays an allocation log against a pool of any page size and policy, and tells what it maps.

The log is recorded with the setting allocation_log or made by tests/support/multi_turn.py; format
and measures are described in docs/allocation-log.md. What is not given is as in the log's header.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvcached_core.config import format_size, parse_size
from kvcached_core.pool import GrowthPolicy
from kvcached_core.pool.allocation_log import Header, LogError, read_header, read_records
from kvcached_core.pool.replay import PoolTooSmall, Replay, Totals

SERIES_POINTS = 120


def size(text: str) -> int:
    """argparse's type of a size; its error names the value and what is allowed."""
    try:
        return parse_size(text, "size")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size_or_none(text: str) -> int | None:
    return None if text == "none" else size(text)


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"found {text!r}, needs a number >= {least}")
        return int(text)

    return number


def replay(args: argparse.Namespace) -> dict[str, Any]:
    """The report. Raises LogError, PoolTooSmall, OSError."""
    with args.log.open(encoding="ascii", errors="replace") as lines:
        header = read_header(lines.readline())
        per_page = blocks_per_page(args, header)
        page_bytes = header.page_bytes // header.blocks_per_page * per_page
        reserve = header.reserve_pages if args.reserve_pages is None else args.reserve_pages
        bound = getattr(args, "prefix_bound", header.prefix_bound)
        played = Replay(
            args.num_blocks or header.num_blocks,
            per_page,
            GrowthPolicy(reserve),
            pages_of(bound, page_bytes),
            pages_of(args.limit, page_bytes),
        )
        totals = played.run(read_records(lines))
    pool = {
        "num_blocks": played.ledger.num_blocks,
        "blocks_per_page": per_page,
        "page_bytes": page_bytes,
        "reserve_pages": reserve,
        "prefix_bound": bound,
        "limit": args.limit,
    }
    return {"log": args.log.name, "pool": pool, **measures(totals)}


def blocks_per_page(args: argparse.Namespace, header: Header) -> int:
    if args.page_size is not None:
        block_bytes = header.page_bytes // header.blocks_per_page
        return max(1, -(-int(args.page_size) // block_bytes))
    return int(args.blocks_per_page or header.blocks_per_page)


def pages_of(given: int | None, page_bytes: int) -> int | None:
    """Whole pages; a size that is not 0 is worth at least one."""
    return given if not given else max(1, given // page_bytes)


def measures(totals: Totals) -> dict[str, Any]:
    """All totals, and of the samples so many that a plot shows them."""
    step = max(1, len(totals.samples) // SERIES_POINTS)
    series = [{**asdict(s), "ratio": round(s.ratio, 4)} for s in totals.samples[::step]]
    plain = {key: value for key, value in vars(totals).items() if key != "samples"}
    return {**plain, "series": series}


def text(report: dict[str, Any]) -> str:
    """The report for people."""
    pool = report["pool"]
    bound = "none" if pool["prefix_bound"] is None else format_size(pool["prefix_bound"])

    def mapped(pages: float) -> str:
        return f"{pages:.1f} pages ({format_size(round(pages) * pool['page_bytes'])})"

    rows = [
        ("pool", f"{pool['num_blocks']} blocks, {pool['blocks_per_page']} a page of "
                 f"{format_size(pool['page_bytes'])}, reserve_pages {pool['reserve_pages']}, "
                 f"prefix_bound {bound}"),
        ("load", f"{report['passes']} passes in {report['milliseconds'] / 1000:.1f} s, "
                 f"{report['popped_blocks']} blocks taken fresh, {report['hit_blocks']} hit, "
                 f"{report['missed_blocks']} missed, {report['evicted_blocks']} evicted"),
        ("pages", f"{report['grown_pages']} grown, {report['retired_pages']} retired, "
                  f"{report['stalls']} stalls"),
        ("mapped", f"mean {mapped(report['mean_mapped_pages'])}, "
                   f"peak {mapped(report['peak_mapped_pages'])}"),
        ("packed", f"mean {mapped(report['mean_packed_pages'])}, "
                   f"peak {mapped(report['peak_packed_pages'])}"),
        ("ratio", f"mean {report['mean_ratio']:.3f}, of the means {report['ratio_of_means']:.3f}, "
                  f"peak {report['peak_ratio']:.2f}, "
                  f"at most {report['peak_excess_pages']} pages above packed"),
    ]  # fmt: skip
    return "\n".join(f"{name:7} {value}" for name, value in rows)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("log", type=Path)
    page = made.add_mutually_exclusive_group()
    page.add_argument("--page-size", type=size, help="such as 4MiB, rounded up to whole blocks")
    page.add_argument("--blocks-per-page", type=at_least(1))
    made.add_argument("--num-blocks", type=at_least(1), help="of the pool")
    made.add_argument("--reserve-pages", type=at_least(0))
    made.add_argument(
        "--prefix-bound", type=size_or_none, default=argparse.SUPPRESS, help="a size, or none"
    )
    made.add_argument("--limit", type=size_or_none, help="memory that may be mapped, or none")
    made.add_argument("--json", action="store_true", help="all measures, and a series over time")
    return made


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        report = replay(args)
    except (LogError, PoolTooSmall, OSError) as error:
        print(f"replay: {args.log}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1) if args.json else text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
