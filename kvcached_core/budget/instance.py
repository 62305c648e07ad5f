"""The files of one running engine beside the records: made, found dead, removed.

A segment is locked (flock) by the process that made it, for its life. A lock on the folder covers
making and locking, so an unlocked segment is a dead engine's.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from kvcached_core._native import Budget, Segment

# The folder's lock is held for milliseconds: past this its holder is stuck.
_FOLDER_DEADLINE_S = 10.0
_FOLDER_POLL_S = 0.01

_locks: dict[str, int] = {}  # path -> descriptor that holds the lock of a segment made here


def create_segment(directory: Path, instance: str, num_pages: int, num_ranks: int) -> Path:
    """Makes the segment of `instance` and holds its lock for this process's life.

    Removes segments of engines that are gone. Raises RuntimeError if an engine of that name lives,
    if the folder is not this user's alone, or if another process keeps it locked.
    """
    folder = directory / "instances"
    for made in (directory, folder):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(made)
    path = folder / f"{quote(instance, safe='')}.segment"
    with _locked(folder):
        remove_dead_segments(folder)
        if path.exists():
            raise RuntimeError(
                f"an engine named {instance!r} runs already ({path} is locked); give this one "
                "another name, or none for a unique one"
            )
        Segment.create(str(path), num_pages, num_ranks)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _locks[str(path)] = descriptor
    atexit.register(remove_segment, path)  # an engine that fails to start shuts nothing down
    return path


def remove_segment(path: Path) -> None:
    """Removes a segment made by this process; does nothing for any other. Idempotent."""
    descriptor = _locks.pop(str(path), None)
    if descriptor is not None:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def remove_dead_segments(folder: Path) -> int:
    """Removes segments whose engine is gone, finished or not; returns how many.

    The caller holds the folder's lock.
    """
    removed = 0
    for path in folder.glob("*.segment*"):
        try:
            if not _is_alive(path):
                path.unlink()
                removed += 1
        except FileNotFoundError:  # its engine ends
            continue
    return removed


def open_device_budget(directory: Path, device: str) -> Budget:
    """A view of an existing record. Raises BudgetError."""
    return Budget.open(str(directory), device, 0, 0)


def _check_private(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise RuntimeError(
            f"{folder} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; it must "
            f"belong to user {os.geteuid()} and be writable by nobody else (chmod go-w), or name "
            "another budget_dir"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _FOLDER_DEADLINE_S
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"another process has kept {folder} locked for {_FOLDER_DEADLINE_S:.0f} s "
                    "(an engine at its start holds it for milliseconds); find and end it"
                )
            time.sleep(_FOLDER_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _is_alive(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go_in_child() -> None:
    """A forked child must neither remove its parent's segment nor keep it alive."""
    for descriptor in _locks.values():
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
