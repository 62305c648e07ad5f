"""Too few descriptors, no space, folders that cannot be used: an error that names what, no leak."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from budget_peer import PLENTY, environment
from rank_rig import rig

from kvcached_core.budget import (
    Budget,
    BudgetError,
    Grant,
    Segment,
    create_segment,
    instance,
    read_segment,
    remove_segment,
)
from kvcached_core.vmm import DriverError, HostDriver

NONE_LEFT = "Too many open files"


def descriptors() -> list[int]:
    """Open ones; the listing's own is not among them."""
    found = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return sorted(fd for fd in found if Path(f"/proc/self/fd/{fd}").exists())


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Within, exactly so many more can be opened."""
    taken, limit = {*descriptors()}, 0
    free = 0
    while free < count or limit in taken:
        free += limit not in taken
        limit += 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def made_segment(directory: Path) -> Path:
    path = directory / "engine.segment"
    if not path.exists():
        Segment.create(str(path), 8, 1)
    return path


CALLS: dict[str, Callable[[Path], object]] = {
    "budget": lambda path: Budget.open(str(path), "host:x", 1000, 0),
    "segment made": lambda path: Segment.create(str(path / "engine.segment"), 8, 1),
    "segment opened": lambda path: Segment.open(str(made_segment(path))),
    "segment read": lambda path: read_segment(str(made_segment(path))),
    "instance": lambda path: remove_segment(create_segment(path, "engine", 8, 1)),
    "driver": lambda path: HostDriver(),
}
# The rows' file is kept for life, by design: its locks would go with it.
KEPT = {"budget": 1}


@pytest.mark.parametrize("what", CALLS)
def test_too_few_descriptors_are_told_and_none_is_lost(tmp_path: Path, what: str) -> None:
    if "segment" in what and what != "segment made":
        made_segment(tmp_path)
    Budget.open(str(tmp_path / "first"), "host:x", 1000, 0)  # what a process opens once
    before = descriptors()
    needed = 0
    while True:
        assert needed < 20, "still too few"
        try:
            with descriptors_left(needed):
                CALLS[what](tmp_path)
        except (BudgetError, DriverError, RuntimeError, OSError) as error:
            text = str(error)
            assert NONE_LEFT in text or "descriptor" in text, text
            assert what == "driver" or str(tmp_path) in text, text
            assert len(descriptors()) - len(before) <= KEPT.get(what, 0)
            assert list(tmp_path.glob(".*")) == []
            assert not list((tmp_path / "instances").glob("*.segment*"))
        else:
            break
        needed += 1
    assert needed > 0
    assert len(descriptors()) - len(before) == KEPT.get(what, 0)
    assert instance._locks == {}


def test_an_open_budget_needs_none(tmp_path: Path) -> None:
    budget = Budget.open(str(tmp_path), "host:x", 1000, 0)
    with descriptors_left(0):
        row = budget.join("engine", 0, 1000)
        assert budget.lease(row, 10, PLENTY, 1000) == Grant.GRANTED
        assert budget.set_terms(row, 1000, 10, 0, 1000) == Grant.GRANTED
        budget.unlease(row, 10)
        assert budget.reap() == 0 and len(budget.rows()) == 1
        budget.leave(row)


def test_a_rank_without_descriptors_refuses_and_goes_on(tmp_path: Path) -> None:
    with rig(tmp_path) as engine:
        member = engine.join()
        engine.grow(1)
        with descriptors_left(0):  # how much is free on the machine cannot be read
            assert engine.grow(2) == ([], [2], [])
            member.rank.make_ready([1])
            engine.retire([1])
        assert engine.segment.failure() == ""
        assert engine.grow(2)[0] == [2]


# --- space ---

_CREATE = (
    "import sys; from pathlib import Path; from kvcached_core.budget import create_segment\n"
    "try: create_segment(Path(sys.argv[1]), 'engine', 100_000, 1)\n"
    "except (RuntimeError, OSError) as error: print(error)"
)
_LIMITED = ["sh", "-c", 'trap "" XFSZ; ulimit -f 100; exec "$@"', "sh"]  # blocks of 512 bytes
_MOUNT = 'mount -t tmpfs -o "size=200k,mode=0700" none "$1" && shift && exec "$@"'
_MOUNTED = ["unshare", "-m", "sh", "-c", _MOUNT, "sh"]


def ways_to_have_no_space() -> list[str]:
    """A limit on file sizes works everywhere; a mount of one's own needs rights."""
    try:
        subprocess.run([*_MOUNTED, "/mnt", "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ["limit"]
    return ["limit", "tmpfs"]


@pytest.mark.parametrize("way", ways_to_have_no_space())
def test_no_space_for_a_segment_is_an_error(tmp_path: Path, way: str) -> None:
    prefix = _LIMITED if way == "limit" else [*_MOUNTED, str(tmp_path)]
    done = subprocess.run(
        [*prefix, sys.executable, "-B", "-c", _CREATE, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "no room for" in done.stdout and "bytes at" in done.stdout
    assert f"{tmp_path}/instances/engine.segment" in done.stdout
    assert not list((tmp_path / "instances").glob("*"))


# --- folders and owners ---


def test_a_nul_in_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"budget_dir: has a NUL behind .*/a'"):
        Budget.open(f"{tmp_path}/a\0b", "host:x", 1000, 0)
    with pytest.raises(RuntimeError, match=r"cannot make the folder .* name another budget_dir"):
        create_segment(tmp_path / "a\0b", "engine", 8, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_or_a_link_for_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name, message in (("file", "cannot make the folder"), ("link", "is a symbolic link")):
        with pytest.raises(RuntimeError, match=message + r".*budget_dir"):
            create_segment(tmp_path / name, "engine", 8, 1)
        with pytest.raises(BudgetError, match=rf"{name}: cannot open it: .*budget_dir"):
            Budget.open(str(tmp_path / name), "host:x", 1000, 0)
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "own" / "instances").symlink_to(tmp_path / "target")
    with pytest.raises(RuntimeError, match="instances is a symbolic link"):
        create_segment(tmp_path / "own", "engine", 8, 1)
    assert list((tmp_path / "target").iterdir()) == []


_AS_ANOTHER = """
import os, sys
from pathlib import Path
from kvcached_core.budget import Budget, create_segment
directory = Path(sys.argv[1])
if os.geteuid() == 0:  # root may write anywhere
    os.chown(directory, 65534, -1)
    os.setuid(65534)
directory.chmod(0o500)
for call in (lambda: Budget.open(str(directory), "host:x", 1000, 0),
             lambda: create_segment(directory, "engine", 8, 1)):
    try:
        call()
    except RuntimeError as error:
        print(error)
directory.chmod(0o700)
"""


def test_a_folder_that_may_not_be_written_is_named() -> None:
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-B", "-c", _AS_ANOTHER, directory],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == 2 and all("Permission denied" in line for line in lines), lines
        assert all(directory in line and "budget_dir" in line for line in lines)
        assert list(Path(directory).iterdir()) == []


def foreign_owners() -> list[int]:
    """Only root can give a file away; for others /usr stands in (test_record_file.py)."""
    return [65534] if os.geteuid() == 0 else []


@pytest.mark.parametrize("owner", foreign_owners())
def test_a_record_of_another_owner_is_refused(tmp_path: Path, owner: int) -> None:
    Budget.open(str(tmp_path), "host:x", 1000, 0)
    os.chown(tmp_path / "host%3Ax.record", owner, -1)
    with pytest.raises(BudgetError, match=rf"owned by uid {owner}, allowed is uid 0.*budget_dir"):
        Budget.open(str(tmp_path), "host:x", 1000, 0)
