"""Whether upstream has newer releases, and whether the series would apply to them."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version
from upstream import Layout, Pin

from .index import like, newer
from .plan import Trial, dry_run
from .report import sums


@dataclass(frozen=True)
class Row:
    engine: str
    pinned: str
    release: str
    uploaded: str
    trial: Trial | None
    """None if nothing is newer, or if the release lacks a wheel that we pin."""
    lacks: str = ""

    @property
    def applies(self) -> bool:
        return self.trial is None or self.trial.applies

    def cells(self) -> list[str]:
        if self.trial is None:
            return [self.engine, self.pinned, self.release, self.uploaded, *"---", self.lacks]
        counts, torn = sums(self.trial.steps), sum(bool(s.conflicts) for s in self.trial.steps)
        kept = counts["at the same lines"] + counts["moved"]
        said = "applies" if self.applies else f"{torn} of {len(self.trial.steps)} in conflict"
        numbers = [kept, counts["merged to other lines"], counts["in conflict"]]
        return [self.engine, self.pinned, self.release, self.uploaded, *map(str, numbers), said]


_HEAD = ["engine", "pinned", "release", "of", "hunks kept", "merged", "in conflict", "patches"]


def check_latest(layout: Layout, pin: Pin, most: int) -> list[Row]:
    """A row for each of the `most` newest releases after the pinned one that can be tried, and one
    for each newer still that lacks a wheel."""
    variants, rows = list(pin.variants.values()), []
    for version in newer(variants, Version(pin.version)):
        found = [(variant.package, like(variant, version)) for variant in variants]
        day = max((offer.uploaded for _, offer in found if offer), default="")
        lacking = sorted({package for package, offer in found if not offer})
        trial = None if lacking else dry_run(layout, pin, str(version))
        lacks = f"no wheel of {', '.join(lacking)} yet" if lacking else ""
        rows.append(Row(layout.engine, pin.version, str(version), day, trial, lacks))
        if sum(row.trial is not None for row in rows) == most:
            break
    return rows or [Row(layout.engine, pin.version, pin.version, "", None, "is the newest")]


def table(rows: list[Row]) -> str:
    """In Markdown, which a terminal shows as well as a job's summary."""
    cells = [_HEAD, ["---"] * len(_HEAD), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
