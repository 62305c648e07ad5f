"""What happened, as a table, and whether it is what the product promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from curve import Curve, Span
from memory import Mapped, Sample
from scene import HALF, MIB, Pair


@dataclass(frozen=True)
class Played:
    """One burst: what was asked, when, how long it took, what was mapped meanwhile and after."""

    label: str
    busy: tuple[int, ...]  # who was asked, by place in the pair
    requests: int
    right: int
    begun: float  # in the sampler's seconds
    seconds: float
    samples: list[Mapped]
    after: Mapped

    def peak(self, index: int) -> int:
        return max(sample[index] for sample in self.samples)

    @property
    def peaks(self) -> Mapped:
        return tuple(self.peak(index) for index in range(len(self.after)))

    @property
    def peak_total(self) -> int:
        return max(map(sum, self.samples))


@dataclass
class Outcome:
    pair: Pair
    capacity: int = 0
    refusal: str = ""
    played: list[Played] = field(default_factory=list)
    stopped: dict[str, int | None] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    told_to_end: float = 0  # in the sampler's seconds

    def problems(self) -> list[str]:
        """All that is not as promised; empty is a success."""
        found = []
        asked, right = self._answers()
        if not asked or right != asked:
            found.append(f"{asked - right} of {asked} answers differ from upstream's")
        if self._highest() > self.capacity:
            found.append(f"{_mib(self._highest())} mapped, more than {_mib(self.capacity)}")
        if not self.refusal:
            found.append("an engine with a fixed half of the memory did not refuse to start")
        for index, engine in enumerate(self.pair.engines):
            peak = max((burst.peak(index) for burst in self.played), default=0)
            if peak <= HALF:
                found.append(
                    f"{engine.name} never had more than {_mib(peak)}: half is {_mib(HALF)}"
                )
            if (status := self.stopped.get(engine.name)) != engine.end_status:
                found.append(f"server {engine.name} ended with status {status} after SIGTERM")
        return found + [f"left behind: {what}" for what in self.left_behind]

    def _answers(self) -> tuple[int, int]:
        return sum(b.requests for b in self.played), sum(b.right for b in self.played)

    def _highest(self) -> int:
        return max((burst.peak_total for burst in self.played), default=0)

    def curve(self) -> Curve:
        """All samples, with the bursts."""
        return Curve(
            capacity=self.capacity,
            half=HALF,
            engines=self.pair.names,
            seconds=[sample.seconds for sample in self.samples],
            mapped=[sample.mapped for sample in self.samples],
            bursts=[
                Span(burst.label, burst.begun, burst.seconds, burst.busy) for burst in self.played
            ],
            stopped=self.told_to_end,
        )

    def lines(self) -> list[str]:
        head = ["burst", "requests", "seconds", *(f"peak {n}" for n in self.pair.names), "peak sum"]
        head += [f"{n} after" for n in self.pair.names]
        rows = [head]
        for burst in self.played:
            memory = [*burst.peaks, burst.peak_total, *burst.after]
            row = [burst.label, str(burst.requests), f"{burst.seconds:.1f}"]
            rows.append(row + [_mib(n) for n in memory])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        asked, right = self._answers()
        return [
            *table,
            "",
            f"answers equal to upstream's: {right} of {asked}",
            f"capacity {_mib(self.capacity)}, a fixed half would be {_mib(HALF)}, "
            f"most mapped at a time {_mib(self._highest())}",
        ]


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB"
