"""What the demo is doing, for who watches it: lines with times, and a word while it waits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memory import Mapped
from scene import MIB

_EVERY_S = 15.0
_BAR = 14  # two bars fit a line of 80 columns
_LIVE = sys.stdout.isatty()
_BEGAN = time.monotonic()


class Progress:
    """Within `with`, says every `every` seconds what is awaited, if anything."""

    def __init__(self, every: float = _EVERY_S) -> None:
        self._waits: list[tuple[str, float]] = []  # what, since when
        self._lock = threading.Lock()
        self._every = every
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While this lasts, `what` is named. From any thread."""
        wait = (what, time.monotonic())
        with self._lock:
            self._waits.append(wait)
        try:
            yield
        finally:
            with self._lock:
                self._waits.remove(wait)

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            now = time.monotonic()
            with self._lock:
                waits = [f"{what} ({now - begun:.0f} s)" for what, begun in self._waits]
            if waits:
                say(f"  ... waiting for {', '.join(waits)}")


def say(text: str) -> None:
    erase = "\r\x1b[K" if _LIVE else ""
    print(f"{erase}demo: [{time.monotonic() - _BEGAN:4.0f} s] {text}", flush=True)


def show_live(label: str, names: Sequence[str], mapped: Mapped, capacity: int) -> None:
    """One line that is written over until something is said; on a terminal only."""
    if _LIVE:
        print(f"\r\x1b[K  {label}: {bars(names, mapped, capacity)}", end="", flush=True)


def bars(names: Sequence[str], mapped: Mapped, capacity: int) -> str:
    """What each engine has mapped, as bars as long as the capacity; | is a fixed half."""
    return "  ".join(
        f"{name} {_bar(size, capacity)} {size // MIB:3} MiB"
        for name, size in zip(names, mapped, strict=True)
    )


def _bar(size: int, capacity: int) -> str:
    full = round(_BAR * size / capacity)
    text = ("#" * full).ljust(_BAR, ".")
    return f"[{text[: _BAR // 2]}|{text[_BAR // 2 :]}]"
