"""Where a record lies and how large the host's memory is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvcached_core._native import Budget, CapacityConflict

_SHM = Path("/dev/shm")
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def default_directory() -> Path:
    """`kvcached-<uid>` in /dev/shm or, where there is none, in the directory for temporary files.

    Nothing is made. Containers have a /dev/shm each: to share a device they need a `budget_dir`.
    """
    base = _SHM if _SHM.is_dir() else Path(tempfile.gettempdir())
    return base / f"kvcached-{os.geteuid()}"


def host_capacity(configured: int | None, *, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes of the host driver: the smallest of configured, cgroup limit and available memory.

    Available is the kernel's MemAvailable, so it shrinks as engines grow: it sizes a new record,
    not an existing one (`open_host_budget`). Raises ValueError for a configured size below 1.
    """
    if configured is not None and configured < 1:
        raise ValueError(f"host capacity: found {configured} bytes, allowed is 1 or more")
    found = [_available(proc), *_cgroup_limits(proc, cgroup)]
    if configured is not None:
        found.append(configured)
    return min(found)


def open_host_budget(
    directory: Path, name: str, configured: int | None, headroom: int = 0
) -> Budget:
    """Opens, or makes, the record of `host:name`.

    Whoever finds live members takes the record's capacity, because what is available now depends
    on what they hold. Raises CapacityConflict when `configured` is another, BudgetError as
    `Budget.open` does.
    """
    capacity = host_capacity(configured)
    return _open(
        directory,
        f"host:{name}",
        configured,
        capacity,
        headroom,
        lambda created: host_capacity(None) + created,
    )


def open_record(
    directory: Path, device: str, total: int, configured: int | None, headroom: int = 0
) -> Budget:
    """Opens, or makes, the record of a device that has `total` bytes; of all of them if no capacity
    is configured. Raises as `open_host_budget` does."""
    capacity = total if configured is None else min(configured, total)
    return _open(directory, device, configured, capacity, headroom, lambda created: total)


def _open(
    directory: Path,
    device: str,
    configured: int | None,
    capacity: int,
    headroom: int,
    most: Callable[[int], int],
) -> Budget:
    """`most` is what there is of the device while so many bytes are created in the record."""
    try:
        return Budget.open(str(directory), device, capacity, headroom)
    except CapacityConflict:
        budget = Budget.open(str(directory), device, 0, 0)
        # More than there is was cut down for the first member, so it is for this one.
        cut = configured is not None and configured > most(budget.created())
        if headroom != budget.headroom() or not (cut or configured in (None, budget.capacity())):
            raise
        return budget


def _available(proc: Path) -> int:
    meminfo = proc / "meminfo"
    for line in meminfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{meminfo}: has no MemAvailable line; Linux 3.14 or later has one")


def _cgroup_limits(proc: Path, cgroup: Path) -> list[int]:
    """Limits of this process's memory cgroup and all above it, versions 1 and 2; [] if none."""
    membership = proc / "self" / "cgroup"
    lines = membership.read_text().splitlines() if membership.exists() else []
    limits: list[int] = []
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            limits += _limits_up(cgroup, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_up(cgroup / "memory", path, "memory.limit_in_bytes")
    return limits


def _limits_up(root: Path, path: str, name: str) -> list[int]:
    # A path that does not exist here is another namespace's: only its ancestors count.
    group = root / path.strip("/")
    files = [at / name for at in (group, *group.parents) if at == root or root in at.parents]
    texts = [file.read_text().strip() for file in files if file.exists()]
    return [int(text) for text in texts if text != "max"]
