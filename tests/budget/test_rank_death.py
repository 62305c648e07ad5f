"""An engine that dies in, or right after, any driver call gives everything back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from rank_rig import EXTENTS, GRANULE, PATIENCE_S, Rig, check_all_is_free

from kvcached_core.vmm import FaultyDriver, HostDriver

SHARED = (3 * GRANULE // 2, GRANULE // 3 + 1)


def live(directory: Path, extents: tuple[int, ...], n: int, after: bool) -> None:
    """A short life whose n-th driver call is its last."""
    driver = FaultyDriver(HostDriver(GRANULE))
    engine = Rig(directory, extents=extents)
    driver.fail_at("any", n, "die", after=after)
    member = engine.join(driver, name=f"engine-{n}-{after}")
    engine.grow(1, 2)
    member.rank.make_ready([1, 2])
    engine.retire([1])
    engine.grow(1)
    member.rank.make_ready([1])
    member.rank.close()


def died(directory: Path, extents: tuple[int, ...], n: int, after: bool) -> bool:
    """Whether the life, in a process of its own, was cut short."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE_S)
        try:
            live(directory, extents, n, after)
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("extents", [EXTENTS, SHARED], ids=["whole", "shared"])
def test_death_in_any_driver_call_gives_everything_back(
    tmp_path: Path, extents: tuple[int, ...], after: bool
) -> None:
    n = 1
    while died(tmp_path, extents, n, after):
        check_all_is_free(tmp_path, f"neighbour-{n}-{after}")
        n += 1
    assert n > 40  # driver calls that one life makes
