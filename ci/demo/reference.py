"""What the demo compares with: upstream's refusal of a fixed half, and its answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from expected import Answers
from processes import Processes, last_lines, wait_for
from progress import Progress
from scene import MODELS, Places, cores_of
from servers import START_SECONDS, Failed

_SECONDS = 600
_HERE = Path(__file__).resolve().parent


class Upstream:
    """Unpatched upstream in a process of its own, at work from construction on."""

    def __init__(self, processes: Processes, places: Places, release: Path) -> None:
        extra = {
            "PYTHONPATH": f"{release}:{_HERE}",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": cores_of(MODELS[0]),
        }
        command = [sys.executable, str(_HERE / "expected.py"), str(places.root)]
        self._places = places
        self._log = places.log("upstream")
        self._process: subprocess.Popen[bytes] = processes.start(command, self._log, extra)

    def refusal(self, progress: Progress) -> str:
        """Why an engine with a fixed half does not start; empty if it does. Raises Failed."""
        found = self._places.refusal
        with progress.waiting("upstream with a fixed half"):
            wait_for(lambda: found.exists() or self._process.poll() is not None, START_SECONDS)
        if not found.exists():
            raise self._failure()
        return found.read_text()

    async def answers(self, progress: Progress) -> Answers:
        """Waits for them. Raises Failed."""
        deadline = time.monotonic() + _SECONDS
        with progress.waiting("upstream's answers"):
            while self._process.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(0.2)  # no thread: an interrupt would have to wait for it
        if self._process.poll() != 0:
            raise self._failure()
        found: Answers = json.loads(self._places.expected.read_text())
        return found

    def _failure(self) -> Failed:
        status = self._process.poll()
        what = "was not done in time" if status is None else f"ended with status {status}"
        end = "\n  | ".join(last_lines(self._log))
        return Failed(f"upstream {what}\n  | {end}")
