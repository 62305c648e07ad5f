"""Engines that start at the same time: one record, one capacity, floors that fit, one name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from budget_peer import PLENTY, Peer, peer

from kvcached_core.budget import Budget, CapacityConflict, Grant, open_host_budget

STARTERS = 4
TURNS = 15


@contextmanager
def starters(directory: Path) -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(peer(directory)) for _ in range(STARTERS)]


def at_once(peers: list[Peer], expressions: list[str]) -> list[str]:
    """What each answers when all evaluate at the same instant."""
    when = time.monotonic() + 0.01
    for one, expression in zip(peers, expressions, strict=True):
        one.send(f"at({when}, lambda: {expression})")
    return [one.reply() for one in peers]


def opening(directory: Path, device: str, capacity: int) -> str:
    return f"keep(kb.Budget.open({str(directory)!r}, {device!r}, {capacity}, 0)).capacity()"


def test_one_capacity_wins_and_stays(tmp_path: Path) -> None:
    with starters(tmp_path) as peers:
        for turn in range(TURNS):
            device = f"host:race{turn}"
            asked = [1000 * n for n in range(1, STARTERS + 1)]
            answers = at_once(peers, [opening(tmp_path, device, size) for size in asked])
            (won,) = [n for n, answer in enumerate(answers) if answer.isdecimal()]
            assert answers[won] == str(asked[won])
            for n, answer in enumerate(answers):
                if n != won:
                    assert f"a capacity of {asked[won]} bytes" in answer
                    assert f"asked for were {asked[n]} bytes" in answer
                    assert "wait for the one that is starting" in answer
            # What it was promised when it opened holds when it joins.
            assert peers[won].do(f"budget.join('won', 0, {asked[won]})") == "0"
            assert peers[won].do("budget.capacity()") == str(asked[won])
            for one in peers:
                one.do("keep(None)")


def test_who_names_no_capacity_takes_the_first_ones(tmp_path: Path) -> None:
    with starters(tmp_path) as peers:
        for turn in range(TURNS):
            call = (
                f"keep(kb.open_host_budget(Path({str(tmp_path)!r}), 'any{turn}', None)).capacity()"
            )
            answers = at_once(peers, [call] * STARTERS)
            # What is available differs from one call to the next; what they agree on does not.
            assert len({*answers}) == 1 and answers[0].isdecimal()
            joins = [f"budget.join('engine{n}', 0, budget.capacity())" for n in range(STARTERS)]
            assert sorted(at_once(peers, joins)) == ["0", "1", "2", "3"]
            for one in peers:
                one.do("budget.leave([r for r in range(4) if mine(r)][0])")
                one.do("keep(None)")


def test_floors_that_fit_are_let_in(tmp_path: Path) -> None:
    with starters(tmp_path) as peers:
        for turn in range(TURNS):
            device = f"host:floors{turn}"
            at_once(peers, [opening(tmp_path, device, 1000)] * STARTERS)
            joins = [f"budget.join('engine{n}', 0, 1000, 300)" for n in range(STARTERS)]
            answers = at_once(peers, joins)
            assert sorted(answer for answer in answers if answer.isdecimal()) == ["0", "1", "2"]
            (refused,) = [answer for answer in answers if not answer.isdecimal()]
            assert (
                "a floor of 300 bytes" in refused and "900 bytes of a capacity of 1000" in refused
            )


def test_one_name_is_one_members(tmp_path: Path) -> None:
    with starters(tmp_path) as peers:
        for turn in range(TURNS):
            device = f"host:names{turn}"
            at_once(peers, [opening(tmp_path, device, 1000)] * STARTERS)
            answers = at_once(peers, ["budget.join('same', 0, 1000)"] * STARTERS)
            (won,) = [n for n, answer in enumerate(answers) if answer == "0"]
            for n, answer in enumerate(answers):
                assert n == won or f"lives already, as process {peers[won].process.pid}" in answer


def test_a_capacity_binds_from_open_on(tmp_path: Path) -> None:
    def open_with(capacity: int, headroom: int = 0) -> Budget:
        return Budget.open(str(tmp_path), "host:test", capacity, headroom)

    first, observer = open_with(1000), open_with(0)
    for capacity, headroom in ((2000, 0), (1000, 10)):
        with pytest.raises(CapacityConflict, match="wait for the one that is starting"):
            open_with(capacity, headroom)
    with peer(tmp_path, "host:test", 1000) as other:
        del first
        with pytest.raises(CapacityConflict):
            open_with(2000)
        other.do("fork_sleeper()")  # whoever is forked relies on nothing
    second = open_with(2000)
    with pytest.raises(CapacityConflict, match=r"2000.*asked for were 1000.*start again"):
        observer.join("planned with 1000", 0, 1000)
    assert observer.rows() == []
    late = open_with(0)
    row = late.join("late", 0, 2000)
    assert late.lease(row, 2000, PLENTY, 1000) == Grant.GRANTED
    del second
    with pytest.raises(CapacityConflict, match="stop the 1 that live"):
        open_with(1000)


def test_a_default_capacity_gives_way_to_one_that_starts(tmp_path: Path) -> None:
    with peer(tmp_path, "host:here", 4096) as other:
        assert other.do("budget.capacity()") == "4096"
        assert open_host_budget(tmp_path, "here", None).capacity() == 4096
        with pytest.raises(CapacityConflict):
            open_host_budget(tmp_path, "here", 8192)
    assert open_host_budget(tmp_path, "here", 8192).capacity() == 8192


@pytest.mark.parametrize("linked", [False, True], ids=["before the link", "after it"])
def test_what_a_starter_left_half_way_is_swept(tmp_path: Path, linked: bool) -> None:
    name = "host%3Ahere"
    if linked:
        del_after = Budget.open(str(tmp_path), "host:here", 1000, 0)
        os.link(tmp_path / f"{name}.record", tmp_path / f".{name}.0123.tmp")
        del del_after
    else:
        (tmp_path / f".{name}.0123.tmp").write_bytes(b"half")
    (tmp_path / ".host%3Aother.0123.tmp").write_bytes(b"another's")
    budget = Budget.open(str(tmp_path), "host:here", 1000, 0)
    assert [path.name for path in tmp_path.glob(".*")] == [".host%3Aother.0123.tmp"]
    assert not budget.detached()


def test_what_a_living_starter_has_half_way_is_spared(tmp_path: Path) -> None:
    half = tmp_path / ".host%3Ahere.0123.tmp"
    half.write_bytes(b"half")
    with peer(tmp_path) as other:
        other.do(f"hold_table({str(half)!r})")
        Budget.open(str(tmp_path), "host:here", 1000, 0)
        assert half.exists()
    Budget.open(str(tmp_path), "host:here", 1000, 0)
    assert not half.exists()
