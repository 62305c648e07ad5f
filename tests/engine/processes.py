"""Engine processes for the tests: each configuration runs once a session.

Needs an environment made by ``ci/env.sh``: the fork installed, upstream's wheel unpacked beside it.
``KVCACHED_UPSTREAM`` names that folder (default: ``upstream`` in the environment's root).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.tiny_model import make_tiny_llama

PROC = Path("/proc")
TESTS = Path(__file__).resolve().parents[1]
UPSTREAM = Path(os.environ.get("KVCACHED_UPSTREAM", Path(sys.prefix) / "upstream"))
DEADLINE_S = 900  # guards against a hang: on two idle cores no run takes 100


@dataclass
class Run:
    """What one engine process left behind. `result` is None if it did not get to the end."""

    returncode: int
    log: str
    result: dict[str, Any] | None

    def __getitem__(self, key: str) -> Any:
        assert self.result is not None, f"exit code {self.returncode}:\n{self.log[-4000:]}"
        return self.result[key]


@dataclass
class Started:
    """An engine's processes, all of one session."""

    process: subprocess.Popen[bytes]
    log: Path
    made: Path

    def kill(self) -> None:
        """SIGKILL to all that is left of it; what they shared by name is removed."""
        shared = self._shared_memory()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for path in shared:  # their resource tracker died with them
            path.unlink(missing_ok=True)

    def _shared_memory(self) -> set[Path]:
        maps = [m for m in PROC.glob("[0-9]*/maps") if _session(m.parent) == self.process.pid]
        lines = [line for m in maps for line in _lines(m) if "/dev/shm/psm_" in line]
        return {Path(line.split()[-1]) for line in lines}

    def run(self) -> Run:
        result = json.loads(self.made.read_text()) if self.made.exists() else None
        return Run(self.process.returncode, self.log.read_text(errors="replace"), result)


def _session(process: Path) -> int | None:
    lines = _lines(process / "stat")
    return int(lines[0].rpartition(")")[2].split()[3]) if lines else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # it has ended
        return []


class Engines:
    """Runs engine processes, one at a time, and remembers each by its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, Run] = {}
        self.model = make_tiny_llama(folder / "model")

    def environment(self, *, upstream: bool = False, in_process: bool = False) -> dict[str, str]:
        paths = [str(TESTS)]
        if upstream:
            assert (UPSTREAM / "vllm").is_dir(), f"{UPSTREAM}: no unpatched vLLM; run ci/env.sh"
            paths.insert(0, str(UPSTREAM))
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",  # idle threads spin, and the machine may have two cores
            "TORCHDYNAMO_DISABLE": "1",  # else warm-up loads a compiler that nothing here uses
            "VLLM_NO_USAGE_STATS": "1",
        }

    def run(
        self, name: str, job: dict[str, Any], *, upstream: bool = False, in_process: bool = False
    ) -> Run:
        """The run called `name`, made now if it was not made before."""
        if name not in self._runs:
            env = self.environment(upstream=upstream, in_process=in_process)
            self._runs[name] = self._execute(name, job, env)
        return self._runs[name]

    def elastic(self, name: str, storage: dict[str, Any], **job: Any) -> Run:
        """A run of the fork with elastic storage; `storage` on top of a budget of its own."""
        in_process = job.pop("in_process", False)
        engine = {
            "kv_storage_backend": "kvcached",
            "kv_storage_config": self.storage(name, **storage),
            **job.pop("engine", {}),
        }
        return self.run(name, {"engine": engine, **job}, in_process=in_process)

    def storage(self, name: str, /, **settings: Any) -> dict[str, Any]:
        base = {"budget": name, "capacity": "256MiB", "page_size": "256KiB"}
        return {**base, "budget_dir": str(self._folder / "budget"), **settings}

    def elastic_together(self, jobs: dict[str, dict[str, Any]]) -> dict[str, Run]:
        """Runs of the fork at the same time, each name with its storage and job."""
        with ThreadPoolExecutor(len(jobs)) as pool:
            runs = {name: pool.submit(self.elastic, name, **job) for name, job in jobs.items()}
            return {name: run.result() for name, run in runs.items()}

    def spawn(self, name: str, job: dict[str, Any], env: dict[str, str]) -> Started:
        """Starts a run in a session of its own, so that all its processes can be killed."""
        given, made = self._folder / f"{name}.job", self._folder / f"{name}.result"
        given.write_text(json.dumps({"model": str(self.model), **job}))
        script = "behave.py" if "scenarios" in job else "runner.py"
        command = [sys.executable, str(TESTS / "engine" / script), str(given), str(made)]
        log = self._folder / f"{name}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                command, env=env, cwd=self._folder, stdout=out, stderr=out, start_new_session=True
            )
        return Started(process, log, made)

    def _execute(self, name: str, job: dict[str, Any], env: dict[str, str]) -> Run:
        started = self.spawn(name, job, env)
        try:
            started.process.wait(DEADLINE_S)
        finally:
            started.kill()
        return started.run()
