"""The memory curve is drawn from any samples, shows what they say, and refuses to draw nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from curve import MIB, PIXELS, Curve, Span, draw, load, save

CURVE = Curve(
    capacity=256 * MIB,
    half=128 * MIB,
    engines=("A", "B"),
    seconds=[0.0, 0.5, 1.0, 1.5],
    mapped=[(0, 0), (150 * MIB, 2 * MIB), (110 * MIB, 146 * MIB), (0, 0)],
    bursts=[Span("A 1", 0.2, 0.4, (0,)), Span("both", 0.8, 0.3, (0, 1))],
    stopped=1.2,
)


def pixels(path: Path) -> tuple[int, int]:
    """Width and height, as the PNG itself says."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_the_drawing_is_a_png_of_the_size_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "new" / "demo.png"
    draw(CURVE, path)
    assert pixels(path) == PIXELS
    assert path.stat().st_size < 100 << 10


def test_the_drawing_follows_the_samples_and_the_bursts(tmp_path: Path) -> None:
    half_as_much = [(a // 2, b // 2) for a, b in CURVE.mapped]
    curves = [CURVE, CURVE, replace(CURVE, mapped=half_as_much), replace(CURVE, bursts=[])]
    for number, curve in enumerate(curves):
        draw(curve, tmp_path / f"{number}.png")
    first, again, less, calm = ((tmp_path / f"{n}.png").read_bytes() for n in range(len(curves)))
    assert first == again
    assert len({first, less, calm}) == 3


def test_one_sample_can_be_drawn(tmp_path: Path) -> None:
    draw(replace(CURVE, seconds=[0.0], mapped=[(1, 2)]), tmp_path / "demo.png")
    assert pixels(tmp_path / "demo.png") == PIXELS


@pytest.mark.parametrize("write", [draw, save], ids=["drawing", "figures"])
@pytest.mark.parametrize(
    ("curve", "said"),
    [
        (replace(CURVE, seconds=[], mapped=[]), "no samples, so there is nothing to draw"),
        (replace(CURVE, seconds=[0.0]), "1 times for 4 samples"),
        (replace(CURVE, engines=("A", "B", "C")), "a sample has not 3 sizes"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_writes_nothing(
    tmp_path: Path, write: object, curve: Curve, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        write(curve, tmp_path / "demo.png")  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


def test_the_figures_survive_their_file(tmp_path: Path) -> None:
    save(CURVE, tmp_path / "new" / "demo.json")
    assert load(tmp_path / "new" / "demo.json") == CURVE


def test_the_drawing_ends_soon_after_the_memory_is_given_back() -> None:
    ended = [(0, 0)] * 100
    seconds = [2.0 + number for number in range(100)]
    long = replace(CURVE, seconds=CURVE.seconds + seconds, mapped=CURVE.mapped + ended)
    assert long.last_held() == CURVE.last_held() == 1.2
    assert replace(CURVE, mapped=[(0, 1)] * 4).last_held() == 1.5


def test_saved_figures_can_be_drawn_again(tmp_path: Path) -> None:
    save(CURVE, tmp_path / "demo.json")
    module = draw.__code__.co_filename
    command = [sys.executable, module, str(tmp_path / "demo.json"), str(tmp_path / "demo.png")]
    subprocess.run(command, check=True)
    assert pixels(tmp_path / "demo.png") == PIXELS


def test_matplotlib_is_imported_only_to_draw_and_needs_no_screen() -> None:
    code = "import sys, curve; sys.exit(any(name.startswith('matplotlib') for name in sys.modules))"
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=Path(draw.__code__.co_filename).parent
    )
