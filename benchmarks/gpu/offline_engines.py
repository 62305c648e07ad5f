"""The parent's side of engines in processes of their own: start, ask, wait no longer than allowed,
kill. Everything here runs in the parent's one thread; times are of the monotonic clock."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offline_spec import Spec

_LOOK_S = 0.2  # how often a silent engine is looked after


class EngineFailed(Exception):
    """An engine ended, answered with an error, or did not answer in time. The text says which."""


class EngineProcess:
    """A child that speaks the protocol of offline_child.py, in a session and group of its own."""

    def __init__(self, spec: Spec, command: list[str], log: Path) -> None:
        """Starts the process; its stderr goes to `log`. Raises OSError."""
        self.spec, self.log = spec, log
        self.began, self.spawned = time.monotonic(), time.time()
        self._unread = b""
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                env=spec.inherited(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """Id of its process group, of its session, and of its first process."""
        return self._process.pid

    def tell(self, do: str, **command: Any) -> None:
        """Raises EngineFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **command}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EngineFailed(f"{do}: it no longer listens ({error})") from None

    def answer(self, until: float, what: str) -> dict[str, Any]:
        """What it answers; `what` it does names it in the error. Raises EngineFailed."""
        line = self._line(until, what)
        try:
            answer = json.loads(line)
        except ValueError:
            raise EngineFailed(f"{what}: answered {line[:200]!r}") from None
        if "ok" not in answer:
            raise EngineFailed(f"{what}: {answer.get('error')}")
        found: dict[str, Any] = answer["ok"]
        return found

    def ask(self, seconds: float, do: str, **command: Any) -> dict[str, Any]:
        """Tells it and waits for the answer. Raises EngineFailed."""
        self.tell(do, **command)
        return self.answer(time.monotonic() + seconds, do)

    def tail(self, lines: int = 60) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def let_go(self) -> None:
        """Ends its stdin, on which it ends when it has nothing to do."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def ended(self) -> bool:
        """Whether no process of its group runs any more."""
        return self._process.poll() is not None and not _running(self.group)

    def _line(self, until: float, what: str) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0:
                raise EngineFailed(f"{what}: no answer in time")
            over = self._process.poll()  # looked at first: what it said last is read below
            if select.select([pipe], [], [], min(left, _LOOK_S))[0]:
                read = os.read(pipe, 1 << 16)
                self._unread += read
                if read:
                    continue
                try:
                    over = self._process.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    raise EngineFailed(f"{what}: it no longer answers") from None
            if over is not None:
                raise EngineFailed(f"{what}: ended with status {over}")
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def stop(engines: Iterable[EngineProcess], grace_s: float, *, at_once: bool = False) -> None:
    """Ends them and all that they started; SIGKILL for what is left after `grace_s`.

    `at_once`: they are busy or stuck, so they are sent SIGTERM too.
    """
    left = list(engines)
    for engine in left:
        engine.let_go()
        if at_once:
            engine.signal(signal.SIGTERM)
    until = time.monotonic() + grace_s
    while (left := [engine for engine in left if not engine.ended()]) and time.monotonic() < until:
        time.sleep(0.05)
    for engine in left:
        engine.signal(signal.SIGKILL)
    until = time.monotonic() + grace_s
    while not all(engine.ended() for engine in left) and time.monotonic() < until:
        time.sleep(0.05)  # a driver takes its time to let go of a device


def _running(group: int) -> bool:
    """Of /proc: a zombie of a process whose parent is gone may stay in the group for good."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False
