"""Several ranks that see what happens outside at different times take the same decisions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("sglang_variables")]

Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path, sglang_variables: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    from engine_sglang.team_rig import Ranks
    from kvcached_core.engines.sglang import backend

    monkeypatch.setattr(backend, "device_of", backend.device_of)  # put back what the rig changes
    made: list[Any] = []

    def build(**given: Any) -> Any:
        made.append(Ranks(tmp_path / "budget", **given))
        return made[-1]

    yield build
    for ranks in made:
        ranks.close()


def harm(ranks: Any, seed: int) -> None:
    """Each rank's driver takes its own time, and is out of memory now and then."""
    for rank, rig in enumerate(ranks.rigs):
        rig.driver.delay("create", 300 * rank * (seed % 3))
        for call in range(5 + seed, 60, 9 + rank):
            rig.driver.fail_at("create", call, "oom")


def serve(ranks: Any, seed: int, turns: int = 150) -> list[list[Any]]:
    """Beside a neighbour that comes and goes."""
    from engine_sglang.team_rig import Neighbour

    harm(ranks, seed)
    neighbour = Neighbour(ranks.rigs[0].backend._memory.budget, seed, 12)
    neighbour.start()
    try:
        found: list[list[Any]] = ranks.serve(seed, turns)
    finally:
        neighbour.stop()
    return found


def grown(rig: Any) -> int:
    return int(rig.backend._stepper._pools.ledger.pages("owned"))


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_the_same_whatever_happens_when(make: Make, seed: int) -> None:
    """Two ranks of a stage and one of the next."""
    ranks = make(size=3, later={2}, floor=0)
    first, *others = serve(ranks, seed)
    for other in others:
        assert other == first
    assert first[-1][3] > 4  # requests finished
    for rig in ranks.rigs:
        report = rig.backend.report()
        assert report["steps_compared"] > 50
        assert report["pages_released"] > 0


def test_a_rank_that_looks_outside_itself_is_found(make: Make) -> None:
    """The mutant: one rank goes by what it sees, not by what was announced."""
    ranks = make()
    wrong = ranks.rigs[1].backend._stepper.supply.budgets
    wrong.asked_pages = wrong.outside.asked_pages
    wrong.least_pages = wrong.outside.least_pages
    wrong.others_want = wrong.outside.others_want
    with pytest.raises(
        RuntimeError,
        match=r"rank 1 (differs from rank 0 behind step \d+: .* is "
        r"\d+, at rank 0 \d+|is at moment|cannot do)",
    ):
        for seed in range(8):
            serve(ranks, seed)


def test_a_rank_that_goes_by_news_too_early_is_found(make: Make) -> None:
    """The mutant: the first rank does not wait for the moment that it announced."""
    ranks = make()
    supply = ranks.rigs[0].backend._stepper.supply
    end_turn = supply.end_turn

    def at_once(*, look: bool) -> None:
        end_turn(look=look)
        if (news := supply._news_of_turn()) is not None:
            supply._take(news)
            supply.settle()

    supply.end_turn = at_once
    with pytest.raises(RuntimeError, match=r"rank 1 (differs|is at moment|cannot do)"):
        for seed in range(8):
            serve(ranks, seed)


def test_which_counters_differ_is_said(make: Make) -> None:
    ranks = make()

    def work(rank: int) -> None:
        rig = ranks.rigs[rank]
        for turn in range(6):
            ranks.line.before(rank, turn)
            rig.step([request(100, 10)] if turn < 4 else [])
            ranks.line.behind(rank, turn)
            if turn == 2:
                rig.take(40 + rank)

    with pytest.raises(RuntimeError) as e:
        ranks.each(work)
    said = str(e.value)
    assert "engine one: rank 1 differs from rank 0 behind step" in said
    assert "blocks listed of pool 0 is " in said
    assert "spare pages" not in said


def request(prompt: int, answer: int) -> Any:
    from engine_sglang.rig import request

    return request(prompt, answer)


def test_a_steady_step_announces_nothing(make: Make) -> None:
    """What has memory is used; nobody else needs any."""
    ranks = make(floor=0, reserve_wait_ms=1000)

    def work(rank: int) -> list[int]:
        rig, heads = ranks.rigs[rank], []
        one = request(100, 20)
        for turn in range(60):
            ranks.line.before(rank, turn)
            rig.step([] if rig.running.reqs else [one])
            ranks.line.behind(rank, turn)
            if not rig.running.reqs:
                rig.take(100)
                rig.running.reqs = [one]
            heads.append(rig.backend._memory.board._words[0])
            rig.backend._memory.drain()
        return heads

    heads = ranks.each(work)[0]
    assert heads[40] > 0
    assert len(set(heads[40:])) == 1


ONE_ENGINE = ([4, 4, 0, 0], [0, 0, 4, 4])


def both(work: Callable[[int], Any]) -> None:
    """Of two engines, at the same time."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


class Walk:
    """The iterations of one rank, in line with those of the others."""

    def __init__(self, ranks: Any, rank: int) -> None:
        self.rig, self._line, self._rank = ranks.rigs[rank], ranks.line, rank
        self._ranks, self._turn = ranks, 0

    def step(self, waiting: Any = None) -> None:
        self._line.before(self._rank, self._turn)
        self.rig.step(waiting)
        self._line.behind(self._rank, self._turn)
        self._turn += 1

    def fall_asleep(self) -> None:
        """Behind some work."""
        self.step([request(150, 40)])
        self.rig.allocator.free(self.rig.take(150))
        self.rig.allocator.clear()
        self.rig.backend.release()
        self.step()

    def go_on_until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Or for so long, as the first rank sees it."""
        end = time.monotonic() + seconds
        while self._ranks.last is None or self._turn < self._ranks.last:
            leads = self._rank == 0 and self._ranks.last is None
            if leads and (holds() or time.monotonic() > end):
                self._ranks.last = self._turn + 1
            self.step()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()
            time.sleep(0.01)


def test_sleep_ends_when_every_rank_has_its_floor(make: Make) -> None:
    ranks = make(floor=4 * 65536, reserve_wait_ms=1000)
    budget = ranks.rigs[0].backend._memory.budget
    hog: list[int] = []

    def work(rank: int) -> list[int]:
        walk = Walk(ranks, rank)
        rig = walk.rig
        walk.fall_asleep()
        seen = [rig.mapped() // 65536, rig.available()]
        if rank == 0:  # leaves room for one floor of two
            row = budget.join("hog", 0, 32 * 65536, 25 * 65536, 0, 100)
            hog.append(row)
        rig.backend.resume()
        walk.steps(40)
        seen.append(rig.available())
        if rank == 0:
            budget.leave(hog[0])
        walk.steps(80)
        walk.step([request(150, 40)])
        seen.append(rig.available() >= 190)
        return seen

    for seen in ranks.each(work):
        assert seen == [1, 0, 0, True]


def test_engines_that_wake_do_not_each_keep_what_the_other_lacks(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two floors that there is room for, each has one: sooner or later one has both, and the
    other one's ranks have given back what they had."""
    given = {"floor": 4 * 65536, "reserve_wait_ms": 1000}
    engines = [make(name=name, **given) for name in ("one", "two")]
    walks = [[Walk(ranks, rank) for rank in range(2)] for ranks in engines]
    memories = [[rig.backend._memory for rig in ranks.rigs] for ranks in engines]
    both(lambda n: engines[n].each(lambda rank: walks[n][rank].fall_asleep()))
    budget = memories[0][0].budget
    row = budget.join("hog", 0, 32 * 65536, 21 * 65536, 0, 100)
    held = [threading.Event(), threading.Event()]

    def wake_first(n: int, wake: Callable[[], bool]) -> bool:
        if found := wake():
            held[n].set()
        return found

    def wake_second(wake: Callable[[], bool]) -> bool:
        return held[0].is_set() and held[1].is_set() and wake()

    for n, (first, second) in enumerate(memories):
        monkeypatch.setattr(first, "wake", partial(wake_first, n, first.wake))
        monkeypatch.setattr(second, "wake", partial(wake_second, second.wake))

    def floors() -> list[int]:
        rows = {(row.instance, row.rank): row.floor // 65536 for row in budget.rows()}
        return [rows[name, rank] for name in ("one", "two") for rank in range(2)]

    def work(n: int, rank: int) -> None:
        walk = walks[n][rank]
        walk.rig.backend.resume()
        walk.go_on_until(lambda: floors() in ONE_ENGINE, 30)

    both(lambda n: engines[n].each(lambda rank: work(n, rank)))
    assert all(each.is_set() for each in held)
    assert floors() in ONE_ENGINE
    budget.leave(row)


def test_a_start_that_fails_at_one_rank_fails_at_all_and_leaves_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcached_core.budget import Budget
    from kvcached_core.engines.sglang.ranks import place

    listen = place.RankServer

    def failing(folder: Path, me: Any, rank: Any) -> Any:
        if me.rank == 1:
            raise OSError("no socket for you")
        return listen(folder, me, rank)

    monkeypatch.setattr(place, "RankServer", failing)
    with pytest.raises((OSError, RuntimeError), match="no socket for you"):
        make()
    assert Budget.open(str(tmp_path / "budget"), "host:rig", 0, 0).rows() == []
    left = [each.name for each in (tmp_path / "budget" / "instances").iterdir()]
    assert [name for name in left if not name.startswith(".")] == []
    monkeypatch.undo()


def test_no_board_no_start(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcached_core.engines.sglang.ranks.board import Board

    def full(*given: Any) -> Any:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Board, "make", full)
        with pytest.raises((OSError, RuntimeError), match="no space left"):
            make()
    serve(make(), 1, turns=5)  # its name is free again


def test_an_announcement_that_means_nothing_ends_the_engine(make: Make) -> None:
    from kvcached_core.engines.sglang.ranks.board_file import BoardError

    ranks = make()
    ranks.rigs[0].backend._memory.board.announce(b"\xc1")
    with pytest.raises(BoardError, match=r"one\.sockets/.*\.board .* holds no announcement but"):
        serve(ranks, 1)


def test_a_rank_that_takes_part_no_more_is_named(make: Make) -> None:
    ranks = make()
    for rig in ranks.rigs:
        rig.backend._memory.board.patience = 2
    ranks.rigs[1].backend._memory._server.close()
    with pytest.raises(RuntimeError, match=r"KV storage of engine one failed: rank 1 "):
        serve(ranks, 1)


def test_nothing_is_left_of_ranks_that_close(make: Make, tmp_path: Path) -> None:
    ranks = make()
    folder = tmp_path / "budget" / "instances"
    assert [each.suffix for each in (folder / "one.sockets").iterdir()] == [".socket"] * 2
    serve(ranks, 1, turns=30)
    ranks.close()
    ranks.rigs.clear()
    assert [each.name for each in folder.iterdir() if not each.name.startswith(".")] == []
