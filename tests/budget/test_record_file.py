"""Making, opening and refusing the files of a record."""

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from budget_peer import BOOT_ID_AT, BOOT_ID_BYTES, PLENTY, VERSION_AT, environment, patch, peer

from kvcached_core.budget import (
    Budget,
    BudgetError,
    CapacityConflict,
    Grant,
    default_directory,
    host_capacity,
    open_host_budget,
    record,
)

DEVICE = "host:a/b"
FILE = "host%3Aa%2Fb.record"


def make(directory: Path, capacity: int = 1000, headroom: int = 0) -> Budget:
    return Budget.open(str(directory), DEVICE, capacity, headroom)


def test_directory_and_files_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make(tmp_path / "parent" / "own")
    finally:
        os.umask(old)
    for path, mode in (("parent", 0o700), ("parent/own", 0o700), (f"parent/own/{FILE}", 0o600)):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == mode
    names = {path.name for path in (tmp_path / "parent" / "own").iterdir()}
    assert names == {FILE, FILE.replace(".record", ".rows")}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(BudgetError, match=rf"{tmp_path}: has mode {mode:04o}.*0700.*chmod"):
        make(tmp_path)
    tmp_path.chmod(0o755)
    make(tmp_path)


def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    foreign = Path("/usr")
    if os.geteuid() == 0:
        foreign = tmp_path / "foreign"
        foreign.mkdir(mode=0o700)
        os.chown(foreign, 12345, -1)
    owner = foreign.stat().st_uid
    with pytest.raises(BudgetError, match=rf"owned by uid {owner}, allowed is uid {os.geteuid()}"):
        make(foreign)


def test_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for path in ("file", "link", "file/below"):
        with pytest.raises(BudgetError, match="budget_dir"):
            make(tmp_path / path)
    with pytest.raises(BudgetError, match="empty"):
        Budget.open("", DEVICE, 1000, 0)


def test_another_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    patch(tmp_path / FILE, VERSION_AT, struct.pack("I", 7))
    with pytest.raises(BudgetError, match=r"version 7, this build reads version 2\. Use another"):
        make(tmp_path)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 12480])
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BudgetError, match="is not a budget record"):
        make(tmp_path)


def test_a_truncated_record_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    os.truncate(tmp_path / FILE, 200)
    with pytest.raises(BudgetError, match="has 200 bytes"):
        make(tmp_path)


def test_a_stale_record_is_made_anew(tmp_path: Path) -> None:
    make(tmp_path, 1000, 10)
    inode = (tmp_path / FILE).stat().st_ino
    patch(tmp_path / FILE, BOOT_ID_AT, b"x" * (BOOT_ID_BYTES - 1))
    patch(tmp_path / FILE, 192, struct.pack("Q", 1))  # a row that was taken when power was lost
    budget = make(tmp_path, 2000, 20)
    assert (tmp_path / FILE).stat().st_ino != inode
    assert (budget.capacity(), budget.headroom(), budget.rows()) == (2000, 20, [])


def test_an_observer_keeps_a_stale_records_capacity(tmp_path: Path) -> None:
    make(tmp_path, 1000, 10)
    patch(tmp_path / FILE, BOOT_ID_AT, b"x" * (BOOT_ID_BYTES - 1))
    budget = make(tmp_path, 0)
    assert (budget.capacity(), budget.headroom()) == (1000, 10)


def test_a_stale_record_with_a_live_row_is_refused(tmp_path: Path) -> None:
    with peer(tmp_path, DEVICE, 1000) as other:
        other.do("budget.join('elsewhere', 0, 1000)")
        patch(tmp_path / FILE, BOOT_ID_AT, b"x" * (BOOT_ID_BYTES - 1))
        with pytest.raises(BudgetError, match=r"row 0 \('elsewhere'\) lives.*between machines"):
            make(tmp_path)
    make(tmp_path)


def test_capacity_and_headroom_bind_while_a_row_lives(tmp_path: Path) -> None:
    with peer(tmp_path, DEVICE, 1000, 10) as other:
        other.do("budget.join('there', 0, 1000)")
        for capacity, headroom in ((2000, 10), (1000, 20)):
            with pytest.raises(CapacityConflict, match=rf"1000 bytes.*10.*{capacity}.*{headroom}"):
                make(tmp_path, capacity, headroom)
        observer = make(tmp_path, 0)
        assert (observer.capacity(), observer.headroom()) == (1000, 10)
        make(tmp_path, 1000, 10)
    assert make(tmp_path, 2000, 20).capacity() == 2000
    assert observer.capacity() == 2000


def test_capacity_zero_needs_a_record(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="there is no record yet and no capacity was given"):
        make(tmp_path, 0)
    with pytest.raises(BudgetError, match="headroom of 1000 bytes leaves nothing"):
        make(tmp_path, 1000, 1000)
    for device in ("", "x" * 201):
        with pytest.raises(BudgetError, match="1 to 200"):
            Budget.open(str(tmp_path), device, 1000, 0)


def test_removed_row_locks_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    rows = tmp_path / FILE.replace(".record", ".rows")
    rows.rename(tmp_path / "old")
    with pytest.raises(BudgetError, match=r"removed, so nobody can tell who lives"):
        make(tmp_path)
    rows.touch()
    with pytest.raises(BudgetError, match=r"replaced, so nobody can tell who lives"):
        make(tmp_path)


def test_members_of_a_removed_record_go_on(tmp_path: Path) -> None:
    budget = make(tmp_path)
    row = budget.join("old", 0, 1000)
    assert not budget.detached()
    (tmp_path / FILE).unlink()
    assert budget.detached()
    assert budget.lease(row, 10, PLENTY, 1000) == Grant.GRANTED
    new = make(tmp_path)
    assert new.join("new", 0, 1000) != row  # its lock is still held
    assert not new.detached()


def test_refused_joins(tmp_path: Path) -> None:
    budget = make(tmp_path, 1000, 100)
    for arguments, message in (
        (("", 0, 10), "a name of 0 bytes"),
        (("x" * 65, 0, 10), "a name of 65 bytes; allowed are 1 to 64"),
        (("a\0b", 0, 10), "NUL"),
        (("a", 0, 10, 11), "floor of 11 bytes is above the limit of 10"),
        (("a", 0, 10, 0, 0, 0), "weight of 0"),
        (("a", 0, 1000, 901), "floor of 901 bytes does not fit: 100 .* 1000"),
    ):
        with pytest.raises(BudgetError, match=message):
            budget.join(*arguments)
    assert budget.rows() == []
    row = budget.join("x" * 64, 0, 1000, 900, 5000)
    with pytest.raises(BudgetError, match="1000 bytes of a capacity of 1000"):
        budget.join("b", 0, 1000, 1)
    assert budget.set_terms(row, 1000, 901, 0, 1000) == Grant.REFUSED
    assert budget.set_terms(row, 1000, 0, 0, 1000) == Grant.GRANTED
    assert budget.rows()[0].instance == "x" * 64


def test_every_row_taken(tmp_path: Path) -> None:
    budget = make(tmp_path)
    rows = [budget.join("many", rank, 1000) for rank in range(64)]
    assert sorted(rows) == list(range(64))
    with pytest.raises(BudgetError, match="each of its 64 rows is taken"):
        budget.join("many", 64, 1000)
    budget.leave(rows[5])
    assert budget.join("many", 64, 1000) == rows[5]


_OPEN = (
    "import sys; from kvcached_core.budget import Budget, BudgetError\n"
    "try: Budget.open(sys.argv[1], 'host:a', 1000, 0)\n"
    "except BudgetError as error: print(error)"
)
_LIMITED = ["sh", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "sh"]  # blocks of 512 bytes


def on_tmpfs(options: str, directory: Path) -> list[str]:
    script = 'mount -t tmpfs -o "$1,mode=0700" none "$2" && shift 2 && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh", options, str(directory)]


def ways_to_have_no_space() -> list[tuple[str, str]]:
    """A limit on file sizes works everywhere; a mount of one's own needs rights."""
    ways = [("limit", "File too large")]
    try:
        subprocess.run([*on_tmpfs("ro", Path("/mnt")), "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ways
    full = "No space left"
    return [*ways, ("size=8k", full), ("nr_inodes=1", full), ("nr_inodes=2", full), ("ro", "Read-")]


@pytest.mark.parametrize(("way", "message"), ways_to_have_no_space())
def test_no_space_is_an_error(tmp_path: Path, way: str, message: str) -> None:
    prefix = _LIMITED if way == "limit" else on_tmpfs(way, tmp_path)
    done = subprocess.run(
        [*prefix, sys.executable, "-B", "-c", _OPEN, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert message in done.stdout and "budget_dir" in done.stdout
    assert list(tmp_path.glob(".*")) == []


def test_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_directory() == Path("/dev/shm") / f"kvcached-{os.geteuid()}"
    monkeypatch.setattr(record, "_SHM", tmp_path / "none")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert default_directory() == tmp_path / f"kvcached-{os.geteuid()}"


def fake_machine(root: Path, cgroup: str, limits: dict[str, str]) -> dict[str, Path]:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   8 kB\n")
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, limit in limits.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(limit + "\n")
    return {"proc": root / "proc", "cgroup": root / "cgroup"}


@pytest.mark.parametrize(
    ("cgroup", "limits", "configured", "expected"),
    [
        ("0::/\n", {}, None, 8192),
        ("0::/\n", {}, 5000, 5000),
        ("0::/\n", {}, 9000, 8192),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "7000"}, None, 7000),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "7000"}, 6000, 6000),
        ("0::/../other\n", {"memory.max": "6500"}, None, 6500),
        ("4:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "6000"}, None, 6000),
        ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None, 8192),
    ],
)
def test_host_capacity(
    tmp_path: Path, cgroup: str, limits: dict[str, str], configured: int | None, expected: int
) -> None:
    assert host_capacity(configured, **fake_machine(tmp_path, cgroup, limits)) == expected


def test_host_capacity_of_this_machine() -> None:
    assert host_capacity(4096) == 4096
    assert 0 < host_capacity(None) < 1 << 50
    with pytest.raises(ValueError, match="found 0 bytes, allowed is 1 or more"):
        host_capacity(0)


def test_open_host_budget_takes_what_lives(tmp_path: Path) -> None:
    with peer(tmp_path, "host:numa0", 1000) as other:
        other.do("budget.join('there', 0, 1000)")
        assert open_host_budget(tmp_path, "numa0", None).capacity() == 1000
        assert open_host_budget(tmp_path, "numa0", 1000).capacity() == 1000
        for configured, headroom in ((999, 0), (None, 5)):
            with pytest.raises(CapacityConflict):
                open_host_budget(tmp_path, "numa0", configured, headroom)
    assert open_host_budget(tmp_path, "numa0", 4096, 5).capacity() == 4096
