"""A child of a process that has everything open: it may call what it likes and end as it likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from budget_peer import PATIENCE_S, environment

PROGRAM = """
import atexit, gc, os, sys, traceback
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from rank_rig import EXTENTS, GRANULE, PAGE, Rig, eventually
from kvcached_core.budget import Budget, BudgetError, Segment, create_segment, remove_segment
from kvcached_core.vmm import DriverError, FaultyDriver, HostDriver

directory, how = Path(sys.argv[1]), sys.argv[2]
engine = Rig(directory)
path = create_segment(directory, "engine", 8, 1)
engine.path, engine.segment = str(path), Segment.open(str(path))
member = engine.join()
engine.grow(1, 2, 3)
member.rank.make_ready([1, 2])
eventually(lambda: member.is_mapped(3), "mapped")
spare = member.driver.create(GRANULE)
budget, segment, rank, arena, driver = (
    engine.budget, engine.segment, member.rank, member.arenas[0], member.driver
)
half = engine.budget.join("half", 1, PAGE)
assert int(budget.lease(half, PAGE, 1 << 60, 1000)) == 0


def state():
    files = {str(f): f.read_bytes() for f in directory.rglob("*") if f.is_file()}
    return files, driver.held_bytes(), rank.mapped_bytes, [a.mapped_bytes for a in member.arenas]


def call_everything():
    harmless = [
        lambda: budget.leave(member.row), lambda: rank.close(), lambda: arena.release(),
        lambda: remove_segment(path), lambda: budget.rows(), lambda: budget.created(),
        lambda: segment.failure(), lambda: segment.released_epoch(), lambda: segment.progress(),
    ]
    for call in harmless:
        call()
    refused = [
        lambda: budget.join("child", 0, PAGE), lambda: budget.lease(half, 1, 1 << 60, 10),
        lambda: budget.unlease(half, PAGE), lambda: budget.mark_created(half, 1),
        lambda: budget.mark_released(member.row, 1), lambda: budget.set_want(half, 1),
        lambda: budget.set_idle(half, 1), lambda: budget.set_terms(half, PAGE, 0, 0, 10),
        lambda: budget.reap(),
        lambda: segment.request([4]), lambda: segment.poll(), lambda: segment.set_wish(3),
        lambda: segment.set_idle(3), lambda: segment.record([1], "owned", "retiring", 1),
        lambda: rank.make_ready([1]), lambda: rank.retire([1], 9), lambda: rank.drain(10),
        lambda: rank.counters(),
        lambda: arena.map(5 * GRANULE, spare), lambda: arena.unmap(GRANULE),
        lambda: arena.zero(GRANULE, GRANULE), lambda: driver.create(GRANULE),
        lambda: driver.release(spare), lambda: driver.reserve(GRANULE),
    ]
    for n, call in enumerate(refused):
        try:
            call()
        except (BudgetError, RuntimeError, DriverError) as error:
            assert "process" in str(error), (n, error)
        else:
            raise AssertionError(f"call {n} was not refused in a child")


before = state()
pid = os.fork()
if pid == 0:
    try:
        if how != "exits":
            call_everything()
        if how == "drops everything":
            del budget, segment, rank, arena, driver, member, engine
            gc.collect()
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    sys.exit(0)  # destructors and atexit run
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert code == 0, code
assert state() == before, "a child has changed something"
assert engine.grow(4)[0] == [4]
engine.retire([1, 4])
driver.release(spare)
budget.unlease(half, PAGE)
assert member.pages_held() == 3
engine.close()
remove_segment(path)
print("same")
"""


@pytest.mark.parametrize("how", ["exits", "calls everything", "drops everything"])
def test_a_child_changes_nothing(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), how, str(Path(__file__).parent)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
    assert list((tmp_path / "instances").iterdir()) == []
