"""What the demo is doing, for who watches it: lines with times, and a word while it waits."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memory import Mapped
from scene import MIB, MODELS

_EVERY_S = 15.0
_BAR = 32
_WIDTH = 60  # of what a log says last
# How vLLM's log lines begin: process, level, date, place in the source.
_PREFIX = re.compile(r"^(\(.*?\) )?[A-Z]+ [\d-]+ [\d:]+ \[.*?\] ")
_LIVE = sys.stdout.isatty()
_BEGAN = time.monotonic()


@dataclass(frozen=True)
class _Wait:
    what: str
    log: Path | None
    begun: float


class Progress:
    """Says every `every` seconds what is awaited, if anything; from any thread."""

    def __init__(self, every: float = _EVERY_S) -> None:
        self._waits: list[_Wait] = []
        self._lock = threading.Lock()
        self._every = every
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    @contextmanager
    def waiting(self, what: str, log: Path | None = None) -> Iterator[None]:
        """While this lasts, `what` is named, with the end of its log, if it has one."""
        wait = _Wait(what, log, time.monotonic())
        with self._lock:
            self._waits.append(wait)
        try:
            yield
        finally:
            with self._lock:
                self._waits.remove(wait)

    def _run(self) -> None:
        while True:
            time.sleep(self._every)
            with self._lock:
                waits = [w for w in self._waits if time.monotonic() - w.begun >= self._every / 2]
            for wait in waits:
                end = _end_of(wait.log)
                say(f"  ... {wait.what}: {time.monotonic() - wait.begun:.0f} s{end}")


def say(text: str) -> None:
    erase = "\r\x1b[K" if _LIVE else ""
    print(f"{erase}demo: [{time.monotonic() - _BEGAN:4.0f} s] {text}", flush=True)


def show_live(label: str, mapped: Mapped, capacity: int) -> None:
    """One line that is written over until something is said; on a terminal only."""
    if _LIVE:
        print(f"\r\x1b[K  {label}: {bars(mapped, capacity)}", end="", flush=True)


def bars(mapped: Mapped, capacity: int) -> str:
    """What each engine has mapped, as bars as long as the capacity; | is a fixed half."""
    return "  ".join(
        f"{model} {_bar(size, capacity)} {size // MIB:3} MiB"
        for model, size in zip(MODELS, mapped, strict=True)
    )


def _bar(size: int, capacity: int) -> str:
    full = round(_BAR * size / capacity)
    text = ("#" * full).ljust(_BAR, ".")
    return f"[{text[: _BAR // 2]}|{text[_BAR // 2 :]}]"


def _end_of(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if not lines:
        return ""
    last = _PREFIX.sub("", lines[-1]).strip()
    return f" ({last if len(last) <= _WIDTH else last[: _WIDTH - 3] + '...'})"
