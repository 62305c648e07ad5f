"""What users get wrong, and what they do at a bad moment: the backend refuses or waits, and leaves
nothing behind. Stepped by hand (rig.py), beside members of its budget that are no engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcached_core.budget import Budget, Grant

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.usefixtures("sglang_variables"),
    pytest.mark.conformance("refusals"),
]

PAGE = 64 << 10
PER_PAGE = 64
PLENTY = 2**62  # free bytes of the device: not what limits here

Make = Callable[..., Any]


class Hog:
    """Has all memory of the rig's budget."""

    def __init__(self, directory: Path) -> None:
        from kvcached_core.budget import open_record

        directory.mkdir(mode=0o700)
        self.budget = open_record(directory, "host:rig", 32 * PAGE, 32 * PAGE, 0)
        self.row = self.budget.join("hog", 0, 32 * PAGE, 0, 0, 100)
        assert self.budget.lease(self.row, 32 * PAGE, PLENTY, 1000) == Grant.GRANTED

    def give(self, pages: int) -> None:
        self.budget.unlease(self.row, pages * PAGE)

    def others(self) -> list[Any]:
        return [row for row in self.budget.rows() if row.instance != "hog"]


def left(directory: Path) -> list[Path]:
    return list((directory / "instances").glob("*.segment"))


def request(prompt: int, answer: int) -> Any:
    from engine_sglang.rig import request

    return request(prompt, answer)


def test_a_start_waits_for_the_first_page(make: Make, tmp_path: Path) -> None:
    hog = Hog(tmp_path / "budget")

    def give_when_asked() -> None:
        end = time.monotonic() + 20  # guards against a hang
        while not any(row.want for row in hog.others()) and time.monotonic() < end:
            time.sleep(0.001)
        hog.give(1)

    giver = threading.Thread(target=give_when_asked, daemon=True)
    giver.start()
    rig = make(reserve_wait_ms=1, reclaim_wait_ms=1)
    giver.join()
    assert rig.mapped() == PAGE
    rig.step([request(10, 10)], steps=3)
    assert rig.available() == PER_PAGE - 1
    rig.write(rig.take(10))


def test_a_start_without_any_memory_is_refused_and_leaves_nothing(
    make: Make, tmp_path: Path
) -> None:
    hog = Hog(tmp_path / "budget")
    with pytest.raises(RuntimeError, match=r"no room for the first page \(65536 bytes\)"):
        make()
    assert hog.others() == []
    assert left(tmp_path / "budget") == []
    hog.give(32)
    make().write(make(name="two").take(10))


def test_of_two_with_one_name_the_first_goes_on(make: Make, tmp_path: Path) -> None:
    rig = make()
    with pytest.raises(RuntimeError, match="an engine named 'one' runs already"):
        make()
    assert len(left(tmp_path / "budget")) == 1
    rig.step([request(150, 40)])
    rig.write(rig.take(150))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"limit": PAGE - 1}, "the shortest request needs 64KiB .* Raise limit or capacity"),
        # Five tokens would fit, which SGLang keeps from every prompt.
        ({"limit": 16 << 10, "page_size": 16 << 10}, "the shortest request needs 32KiB"),
        ({"capacity": PAGE // 2}, "the shortest request needs .* capacity 32KiB"),
        ({"floor": 33 * PAGE}, "floor"),
        ({"page_size": 0}, "page_size"),
        ({"limit": 0}, "limit"),
        ({"capacity": "all"}, "capacity"),
        ({"weight": 0}, "weight"),
        ({"name": "a/b"}, "name"),
        ({"budget": ""}, "budget"),
        ({"budget_dir": 7}, "budget_dir"),
        ({"layout": "any"}, "layout"),
        ({"reserve_pages": -1}, "reserve_pages"),
        ({"headroom": 32 * PAGE}, "headroom"),
        ({"limit": True}, "limit"),
        ({"limit": None}, "limit"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    make: Make, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make(**settings)
    directory = tmp_path / "budget"
    if directory.exists():
        record = Budget.open(str(directory), "host:rig", 0, 0)
        assert list(record.rows()) == []
        assert left(directory) == []


def test_sleep_and_waking_twice_are_once(make: Make) -> None:
    rig = make()
    rig.step([request(190, 100)])
    rig.allocator.free(rig.take(190))
    for _ in range(2):
        rig.allocator.clear()
        rig.backend.release()
        assert rig.mapped() == PAGE and rig.available() == 0
        assert rig.allocator.unbacked_size() == 2047
    for _ in range(2):
        rig.backend.resume()
        rig.step([request(190, 100)])
        assert rig.available() >= 290
    rig.write(rig.take(290))


def test_waking_without_sleep_changes_nothing(make: Make) -> None:
    rig = make()
    rig.step([request(190, 100)])
    taken = rig.take(190)
    rig.backend.resume()
    rig.step()
    rig.write(taken)


def test_a_flush_at_any_moment_of_giving_back_loses_nothing(make: Make, tmp_path: Path) -> None:
    """The list, what is withheld of it and what is spare are one space of ids."""
    rig = make()
    for moment in range(8):
        rig.step([request(600, 100)])
        rig.cache(rig.take(600))
        hog = rig.backend._memory.budget.join(f"hog-{moment}", 0, 32 * PAGE, 0, 0, 100)
        rig.backend._memory.budget.set_want(hog, 32 * PAGE)
        rig.step(steps=moment)
        rig.tree.reset()
        rig.allocator.clear()
        assert rig.allocator.available_size() + rig.allocator.unbacked_size() == 2047
        rig.stepper._pools.members[0].ledger.check_integrity()
        rig.backend._memory.budget.leave(hog)
        rig.rest()
    rig.step([request(190, 100)])
    rig.write(rig.take(190))
