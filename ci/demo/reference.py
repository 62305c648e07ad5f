"""What the demo compares with: vLLM's refusal of a fixed half, and the answers of both."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

from arguments import SGLANG_ENVIRONMENT
from processes import Processes, last_lines, wait_for
from progress import Progress
from scene import Places, cores_of
from servers import START_SECONDS, Failed
from workload import Answers, load_answers

_SECONDS = 600
_HERE = Path(__file__).resolve().parent


_ENVIRONMENT = {
    "vllm": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": cores_of(0)},
    "sglang": SGLANG_ENVIRONMENT,
}


class Upstream:
    """Unpatched upstream of a kind, in a process of its own, at work from construction on."""

    def __init__(self, processes: Processes, places: Places, kind: str) -> None:
        paths = {"PYTHONPATH": f"{places.upstream(kind)}:{_HERE}"}
        script = str(_HERE / f"expected_{kind}.py")
        command = [places.program(kind, "python"), script, str(places.root)]
        self._processes = processes
        self._places = places
        self._kind = kind
        self._log = places.log(f"upstream-{kind}")
        self._process: subprocess.Popen[bytes] = processes.start(
            command, self._log, paths | _ENVIRONMENT[kind]
        )

    def refusal(self, progress: Progress) -> str:
        """Why vLLM with a fixed half does not start; empty if it does. Raises Failed."""
        found = self._places.refusal
        with progress.waiting("upstream with a fixed half"):
            wait_for(lambda: found.exists() or self._process.poll() is not None, START_SECONDS)
        if not found.exists():
            raise self._failure()
        return found.read_text()

    async def answers(self, progress: Progress) -> Answers:
        """Waits for them. Raises Failed."""
        deadline = time.monotonic() + _SECONDS
        with progress.waiting(f"the answers of upstream's {self._kind}"):
            while self._process.poll() is None and time.monotonic() < deadline:
                self._processes.note_shared_memory()
                await asyncio.sleep(0.5)  # no thread: an interrupt would have to wait for it
        if self._process.poll() != 0:
            raise self._failure()
        return load_answers(self._places.expected(self._kind))

    def _failure(self) -> Failed:
        status = self._process.poll()
        what = "was not done in time" if status is None else f"ended with status {status}"
        end = "\n  | ".join(last_lines(self._log))
        return Failed(f"upstream's {self._kind} {what}\n  | {end}")
