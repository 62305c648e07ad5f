"""Several `vllm serve` at once: started, waited for, asked for their counters, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

COMMAND = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
GRACE_S = 20  # between SIGTERM and SIGKILL


class Servers:
    """One server an argument list, on successive ports; a session each. Ends them on exit."""

    def __init__(
        self, arguments: list[list[str]], port: int, environment: dict[str, str], logs: list[Path]
    ) -> None:
        self.urls = [f"http://127.0.0.1:{port + i}" for i in range(len(arguments))]
        self._logs = logs
        self._processes = []
        for i, (words, log) in enumerate(zip(arguments, logs, strict=True)):
            command = [*COMMAND, *words, "--host", "127.0.0.1", "--port", str(port + i)]
            with log.open("w") as out:
                self._processes.append(
                    subprocess.Popen(
                        command, env=environment, stdout=out, stderr=out, start_new_session=True
                    )
                )

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *failure: object) -> None:
        self._signal(signal.SIGTERM)
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end and any(p.poll() is None for p in self._processes):
            time.sleep(0.1)
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def wait(self, deadline_s: float) -> None:
        """Until all answer. Raises SystemExit with the log's end if one does not."""
        end = time.monotonic() + deadline_s
        for i, url in enumerate(self.urls):
            while not _is_up(url):
                if self._processes[i].poll() is not None or time.monotonic() > end:
                    raise SystemExit(self._what_became_of(i))
                time.sleep(0.5)

    def counters(self) -> list[dict[str, float]]:
        """Counters and gauges of each by name, summed over their labels. Raises as wait() does."""
        found = []
        for i, url in enumerate(self.urls):
            try:
                found.append(_metrics(url))
            except OSError:
                raise SystemExit(self._what_became_of(i)) from None
        return found

    def _what_became_of(self, i: int) -> str:
        tail = "\n".join(self._logs[i].read_text(errors="replace").splitlines()[-60:])
        return f"{self._logs[i]}: not up (exit status {self._processes[i].poll()}):\n{tail}"


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith("vllm:"):
            name, value = line.partition("{")[0], float(line.rpartition(" ")[2])
            found[name] = found.get(name, 0.0) + value
    return found
