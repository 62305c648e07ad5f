"""The memory curve: what each engine had mapped over time, as figures (JSON) and drawn (PNG).

python curve.py JSON PNG: draws figures that were saved.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 1 << 20

_INCHES, _DPI = (10.0, 5.0), 100
PIXELS = (int(_INCHES[0] * _DPI), int(_INCHES[1] * _DPI))
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by colour-blind eyes too
_GREY = "#8a8a8a"
_LABELS, _TOP = 1.09, 1.18  # heights, as parts of the capacity


@dataclass(frozen=True)
class Span:
    """A burst: when it began and how long it took, in the curve's seconds."""

    label: str
    begun: float
    seconds: float
    engines: tuple[int, ...]  # who was busy, by place in the curve's engines


@dataclass(frozen=True)
class Curve:
    """Sizes in bytes; `mapped` holds a sample of every engine for each of `seconds`."""

    capacity: int
    half: int
    engines: tuple[str, ...]
    seconds: list[float]
    mapped: list[tuple[int, ...]]
    bursts: list[Span]
    stopped: float  # when the engines were told to end, in the curve's seconds

    def check(self) -> None:
        """Raises ValueError if there is nothing to draw, or what there is does not fit together."""
        if not self.seconds:
            raise ValueError("memory curve: no samples, so there is nothing to draw")
        if len(self.seconds) != len(self.mapped):
            raise ValueError(
                f"memory curve: {len(self.seconds)} times for {len(self.mapped)} samples"
            )
        if any(len(sample) != len(self.engines) for sample in self.mapped):
            raise ValueError(f"memory curve: a sample has not {len(self.engines)} sizes")

    def of(self, index: int) -> list[float]:
        """One engine's curve, in MiB."""
        return [sample[index] / MIB for sample in self.mapped]

    def last_held(self) -> float:
        """When any engine still had memory, or was told to end, in seconds."""
        times = [t for t, sample in zip(self.seconds, self.mapped, strict=True) if any(sample)]
        return max([*times, self.stopped])


def save(curve: Curve, path: Path) -> None:
    """Writes the figures. Raises ValueError and OSError."""
    curve.check()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"unit": "bytes", **asdict(curve)}) + "\n")


def load(path: Path) -> Curve:
    """Reads what save() wrote."""
    found = json.loads(path.read_text())
    return Curve(
        capacity=found["capacity"],
        half=found["half"],
        engines=tuple(found["engines"]),
        seconds=found["seconds"],
        mapped=[tuple(sample) for sample in found["mapped"]],
        bursts=[Span(**{**b, "engines": tuple(b["engines"])}) for b in found["bursts"]],
        stopped=found["stopped"],
    )


def draw(curve: Curve, path: Path) -> None:
    """Writes a PNG of PIXELS. Raises ValueError and OSError."""
    curve.check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (only to draw)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _shade(axes, curve)
    _lines(axes, curve)
    _frame(axes, curve)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, format="png")


def _shade(axes: Axes, curve: Curve) -> None:
    """The bursts, each in the colour of who was busy."""
    top = _LABELS * curve.capacity / MIB
    for burst in curve.bursts:
        alone = len(burst.engines) == 1
        colour = _COLOURS[burst.engines[0]] if alone else _GREY
        axes.axvspan(burst.begun, burst.begun + burst.seconds, color=colour, alpha=0.13, lw=0)
        middle = burst.begun + burst.seconds / 2
        label = burst.label if alone else burst.label.replace(" ", "\n")
        axes.text(middle, top, label, ha="center", va="center", fontsize=9, linespacing=0.9)
    axes.axvline(curve.stopped, color=_GREY, lw=1)
    axes.text(curve.stopped, top, " SIGTERM\n to both", va="center", fontsize=9, linespacing=0.9)


def _lines(axes: Axes, curve: Curve) -> None:
    total = [sum(sample) / MIB for sample in curve.mapped]
    axes.plot(curve.seconds, total, color=_GREY, lw=1.2, ls=":", label=" + ".join(curve.engines))
    for index, engine in enumerate(curve.engines):
        sizes, colour = curve.of(index), _COLOURS[index]
        axes.plot(
            curve.seconds, sizes, color=colour, lw=2, label=f"{engine}, peak {max(sizes):.0f} MiB"
        )
    capacity, half = curve.capacity / MIB, curve.half / MIB
    axes.axhline(capacity, color="black", lw=1.5, label=f"capacity, {capacity:.0f} MiB")
    axes.axhline(half, color="black", lw=1.2, ls="--", label=f"a fixed half, {half:.0f} MiB")


def _frame(axes: Axes, curve: Curve) -> None:
    capacity = curve.capacity / MIB
    axes.set_title(
        f"{' and '.join(curve.engines)} share {capacity:.0f} MiB of KV cache: "
        "memory follows the load, past what a fixed half allows"
    )
    axes.set_xlabel(
        "time since both engines serve (s); shaded: a burst, in the colour of who is asked"
    )
    axes.set_ylabel("physical memory mapped (MiB)")
    axes.set_xlim(0, curve.last_held() + 2)
    axes.set_ylim(0, _TOP * capacity)
    axes.set_yticks([capacity * step / 4 for step in range(5)])
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, frameon=False, fontsize=9)


if __name__ == "__main__":
    draw(load(Path(sys.argv[1])), Path(sys.argv[2]))
