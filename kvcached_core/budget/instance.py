"""The files of one running engine beside the records: made, found dead, kept or removed.

A segment is locked (flock) by the process that made it, for its life. A lock on the folder covers
making and locking, so an unlocked segment is a dead engine's. An engine that closes properly
removes its segment; one that died, or failed, leaves it, and the next start moves it aside, where
`postmortem` finds it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from kvcached_core._native import Budget, Segment, read_segment

# The folder's lock is held for milliseconds: past this its holder is stuck.
_FOLDER_DEADLINE_S = 10.0
_FOLDER_POLL_S = 0.01
# Segments of the dead that a directory keeps: a few hundred KiB each.
KEPT = 8
_SUFFIX, _SOCKETS = ".segment", ".sockets"
_BURIAL = re.compile(r"\.\d{19}" + re.escape(_SUFFIX) + "$")
_BURIED = len(f".{0:019}{_SUFFIX}")  # what burial adds to a name: its time in ns, fixed width

_locks: dict[str, int] = {}  # path -> descriptor that holds the lock of a segment made here


def create_segment(directory: Path, instance: str, num_pages: int, num_ranks: int) -> Path:
    """Makes the segment of `instance` and holds its lock for this process's life.

    Moves the segments of engines that are gone to `kept_folder`. Raises RuntimeError if an engine
    of that name lives, if a folder cannot be made or is not this user's alone, or if another
    process keeps it locked.
    """
    folder = running_folder(directory)
    for made in (directory, folder, kept_folder(directory)):
        _make_private(made)
    path = folder / f"{quote(instance, safe='')}{_SUFFIX}"
    with locked(folder):
        bury_dead_segments(directory)
        if path.exists():
            raise RuntimeError(
                f"an engine named {instance!r} runs already{_holder(path)} ({path} is locked); "
                "stop it, or give this one another name, or none for a unique one"
            )
        shutil.rmtree(sockets_folder(path), ignore_errors=True)  # of a dead one of that name
        _create(path, num_pages, num_ranks)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _locks[str(path)] = descriptor
    atexit.register(remove_segment, path)  # an engine that fails to start shuts nothing down
    return path


def _create(path: Path, num_pages: int, num_ranks: int) -> None:
    try:
        Segment.create(str(path), num_pages, num_ranks)
    except RuntimeError as error:
        raise RuntimeError(
            f"cannot make the segment {path}: {error}; free some space there or name another "
            "budget_dir"
        ) from None


def remove_segment(path: Path) -> None:
    """Removes a segment made by this process; does nothing for any other. Idempotent.

    That of an engine whose rank reported a failure is kept.
    """
    descriptor = _locks.pop(str(path), None)
    if descriptor is None:
        return
    shutil.rmtree(sockets_folder(path), ignore_errors=True)
    try:
        if _failed(path):
            _keep(path, kept_folder(path.parent.parent))
        else:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def sockets_folder(segment: Path) -> Path:
    """Where the ranks of the engine with this segment listen, if there are several."""
    return segment.with_suffix(_SOCKETS)


def running_folder(directory: Path) -> Path:
    """Where the segments of running engines lie, and of dead ones until the next start."""
    return directory / "instances"


def kept_folder(directory: Path) -> Path:
    """Where the segments of engines lie that did not close properly, the last KEPT of them."""
    return directory / "postmortem"


def segment_files(directory: Path, instance: str) -> list[Path]:
    """Segments of engines of that name: the running or last one first, then kept ones, newest
    first."""
    name = quote(instance, safe="")
    running = running_folder(directory) / f"{name}{_SUFFIX}"
    kept = [path for path in _kept_segments(kept_folder(directory)) if path.name[:-_BURIED] == name]
    return [path for path in (running, *reversed(kept)) if path.exists()]


def instance_of(path: Path, running: bool) -> str:
    """The name of the engine whose segment this is; `running` tells which folder it lies in."""
    return unquote(path.stem if running else path.name[:-_BURIED])


def bury_dead_segments(directory: Path) -> int:
    """Moves segments whose engine is gone to `kept_folder`, removes unfinished ones and all but the
    last KEPT, and sockets of none; returns how many segments were found. The caller holds the lock
    of `running_folder`.
    """
    found, kept = 0, kept_folder(directory)
    for path in running_folder(directory).glob(f"*{_SUFFIX}*"):
        try:
            if not stat.S_ISREG(path.lstat().st_mode) or is_locked(path):
                continue  # lives, or is nothing of ours
            if path.suffix == _SUFFIX:
                shutil.rmtree(sockets_folder(path), ignore_errors=True)
                _keep(path, kept)
            else:
                path.unlink()
            found += 1
        except FileNotFoundError:  # its engine ends
            continue
    for path in running_folder(directory).glob(f"*{_SOCKETS}"):
        if not path.with_suffix(_SUFFIX).exists():  # whose ranks listened too late
            shutil.rmtree(path, ignore_errors=True)
    return found


def is_locked(path: Path) -> bool:
    """Whether the engine of this segment lives. The caller holds the lock of `running_folder`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def open_device_budget(directory: Path, device: str) -> Budget:
    """A view of an existing record. Raises BudgetError."""
    return Budget.open(str(directory), device, 0, 0)


def _kept_segments(kept: Path) -> list[Path]:
    """Oldest first: the time of burial is the fixed-width end of the name."""
    named = [path for path in kept.glob(f"*{_SUFFIX}") if _BURIAL.search(path.name)]
    return sorted(named, key=lambda path: path.name[-_BURIED:])


def _keep(path: Path, kept: Path) -> None:
    before = _kept_segments(kept)
    # Not older than those before it, also where the clock was set back.
    newest = int(before[-1].name[-_BURIED + 1 : -len(_SUFFIX)]) if before else 0
    path.rename(kept / f"{path.stem}.{max(time.time_ns(), newest + 1):019}{_SUFFIX}")
    for old in _kept_segments(kept)[:-KEPT]:
        old.unlink(missing_ok=True)


def _failed(path: Path) -> bool:
    try:
        return any(rank["failure"] for rank in read_segment(str(path), 0)["ranks"])
    except RuntimeError:  # removed or replaced by hand
        return False


def _holder(path: Path) -> str:
    try:
        return f" as process {read_segment(str(path), 0)['pid']}"
    except RuntimeError:  # of another release
        return ""


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in it
        raise RuntimeError(
            f"cannot make the folder {str(folder)!r}: {error}; name another budget_dir"
        ) from None
    if folder.is_symlink():
        raise RuntimeError(f"{folder} is a symbolic link; name its target as budget_dir")
    _check_private(folder)


def _check_private(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise RuntimeError(
            f"{folder} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; it must "
            f"belong to user {os.geteuid()} and be writable by nobody else (chmod go-w), or name "
            "another budget_dir"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock. Raises RuntimeError if another process keeps it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(
            f"cannot open the folder {folder}: {error.strerror}; "
            "raise the limit of open files (ulimit -n), or name another budget_dir"
        ) from None
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
