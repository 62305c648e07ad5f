"""The files of one running engine beside the records: made, found dead, removed."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from kvcached_core._native import Budget, Segment

# A segment is locked right after it is made; a younger unlocked one may be about to be.
_GRACE_S = 60.0

_locks: dict[str, int] = {}  # path -> descriptor that holds the lock of a segment made here


def create_segment(directory: Path, instance: str, num_pages: int, num_ranks: int) -> Path:
    """Makes the segment of `instance` and holds its lock for this process's life.

    Removes segments of engines that are gone. Raises RuntimeError if an engine of that name lives.
    """
    folder = directory / "instances"
    folder.mkdir(mode=0o700, exist_ok=True)
    remove_dead_segments(folder)
    path = folder / f"{instance.replace('/', '@')}.segment"
    if path.exists() and _is_alive(path):
        raise RuntimeError(
            f"an engine named {instance!r} runs already ({path} is locked); give this one another "
            "name, or none for a unique one"
        )
    Segment.create(str(path), num_pages, num_ranks)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _locks[str(path)] = descriptor
    return path


def remove_segment(path: Path) -> None:
    """Removes a segment made by this process; does nothing for any other. Idempotent."""
    descriptor = _locks.pop(str(path), None)
    if descriptor is not None:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def remove_dead_segments(folder: Path) -> int:
    """Removes segments whose engine is gone; returns how many."""
    removed = 0
    for path in folder.glob("*.segment"):
        try:
            young = time.time() - path.stat().st_mtime < _GRACE_S
            if not young and not _is_alive(path):
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue
    return removed


def open_device_budget(directory: Path, device: str) -> Budget:
    """A view of an existing record. Raises BudgetError."""
    return Budget.open(str(directory), device, 0, 0)


def _is_alive(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
