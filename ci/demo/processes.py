"""The demo's processes: started, watched, and ended for certain, with what they leave in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

_SHM = "/dev/shm/"


class Processes:
    """All of them stay in this process's group, so that whoever started it can end the group."""

    def __init__(self, folder: Path, environment: dict[str, str], patience: float = 20) -> None:
        self._folder = folder
        self._patience = patience  # seconds that end() leaves them after SIGTERM
        self._environment = environment
        self._shared: set[Path] = set()

    def start(
        self, command: Sequence[str], log: Path, extra: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with log.open("wb") as sink:
            return subprocess.Popen(
                command,
                cwd=self._folder,  # in the repository its packages would hide the installed ones
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._environment, **extra},
            )

    def note_shared_memory(self) -> None:
        """Remembers which files in shared memory our processes use now."""
        for process in self.living():
            self._shared |= _shared_by(process.pid)

    def living(self) -> list[psutil.Process]:
        return [p for p in psutil.Process().children(recursive=True) if _runs(p)] + _orphans()

    def left_shared_memory(self) -> list[Path]:
        return sorted(path for path in self._shared if path.exists())

    def end(self) -> None:
        """Ends what still runs, politely first, and removes what that leaves in shared memory."""
        self.note_shared_memory()
        # Python's resource trackers outlive their engines by a moment, to clean up after them.
        for number, patience in ((signal.SIGTERM, self._patience), (signal.SIGKILL, 5)):
            for process in self.living():
                _send(process, number)
            wait_for(lambda: not self.living(), patience)
        for path in self.left_shared_memory():
            path.unlink(missing_ok=True)


def wait_for(happened: Callable[[], bool], seconds: float) -> bool:
    """Whether it happened within that time."""
    deadline = time.monotonic() + seconds
    while not (done := happened()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return done


def last_lines(log: Path, containing: Iterable[str] = (), count: int = 15) -> list[str]:
    """The end of a log, or the last lines in it that contain one of these texts."""
    lines = log.read_text(errors="replace").splitlines()
    wanted = tuple(containing)
    return [line for line in lines if not wanted or any(w in line for w in wanted)][-count:]


def _shared_by(pid: int) -> set[Path]:
    """Files in shared memory that a process has mapped; none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = (_SHM + line.partition(_SHM)[2] for line in lines if _SHM in line)
    return {Path(path) for path in paths if not path.endswith(" (deleted)")}


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _orphans() -> list[psutil.Process]:
    """Processes of our group whose parent is gone. Our group is our own: see ci/demo.sh."""
    mine = os.getpgid(0)
    if mine != os.getpid():
        return []
    known = {p.pid for p in psutil.Process().children(recursive=True)} | {os.getpid()}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in known and os.getpgid(process.pid) == mine and _runs(process):
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return
