"""Engine processes for the tests: each configuration runs once a session.

Needs an environment made by ``ci/env.sh``: the fork installed, upstream's wheel unpacked beside it.
``KVCACHED_UPSTREAM`` names that folder (default: ``upstream`` in the environment's root),
``KVCACHED_TEST_MODEL`` a model to use in the place of one made here (a large one takes its time).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.tiny_model import DEFAULT, TinyLlama, make_tiny_llama

PROC, SHM = Path("/proc"), Path("/dev/shm")
TESTS = Path(__file__).resolve().parents[1]
UPSTREAM = Path(os.environ.get("KVCACHED_UPSTREAM", Path(sys.prefix) / "upstream"))
TRACKED = ("psm_", "sem.")  # by Python's resource tracker: memory, semaphores
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

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until it holds; fails when the engine ends before that."""
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert self.process.poll() is None, f"ended before {what}:\n{self._text()[-4000:]}"
            assert time.monotonic() < end, f"never: {what}:\n{self._text()[-4000:]}"
            time.sleep(0.01)

    def wait_for_log(self, line: str) -> None:
        self.wait_until(lambda: line in self._text(), f"{line!r} in its log")

    def kill(self) -> None:
        """SIGKILL to all that is left of it, until it is dead; what they shared by name is removed.

        They are stopped first, so that this instant is that of the kill.
        """
        self._signal(signal.SIGSTOP)
        shared = {path for path in self.shared_memory() if path.name.startswith(TRACKED)}
        self._signal(signal.SIGKILL)
        self.wait_for_end()
        for path in shared:  # their resource tracker died with them
            path.unlink(missing_ok=True)

    def wait_for_end(self) -> None:
        """Waits until no process of its session is left."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None or self.members():
            assert time.monotonic() < end, f"still run: {self.members()}:\n{self._text()[-4000:]}"
            time.sleep(0.02)

    def members(self) -> list[Path]:
        """What still runs of its session, as folders of /proc."""
        return [p for p in PROC.glob("[0-9]*") if _is_of_session(p, self.process.pid)]

    def shared_memory(self) -> set[Path]:
        """Files in shared memory that it has mapped, whatever they were called then."""
        maps = [line for member in self.members() for line in _lines(member / "maps")]
        mapped = {int(line.split()[4]) for line in maps if f"{SHM}/" in line}
        return {SHM / entry.name for entry in os.scandir(SHM) if entry.inode() in mapped}

    def run(self) -> Run:
        result = json.loads(self.made.read_text()) if self.made.exists() else None
        return Run(self.process.returncode, self._text(), result)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _text(self) -> str:
        return self.log.read_text(errors="replace")


def _is_of_session(process: Path, session: int) -> bool:
    """Whether it is, and one of its threads runs; the first may be over before the others."""
    found = _stat(process)
    if not found or int(found[3]) != session:
        return False
    return any(stat[0] not in "ZX" for task in process.glob("task/*") if (stat := _stat(task)))


def _stat(task: Path) -> list[str]:
    """State, parent, group, session; empty when it has ended."""
    lines = _lines(task / "stat")
    return lines[0].rpartition(")")[2].split()[:4] if lines else []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # it has ended
        return []


class Engines:
    """Runs engine processes, one at a time, and remembers each by its name."""

    package = "vllm"
    scripts = TESTS / "engine"

    def __init__(
        self,
        folder: Path,
        shape: TinyLlama = DEFAULT,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`environment`: variables of every engine, over those below."""
        self._folder = folder
        self._more = environment
        self._runs: dict[str, Run] = {}
        made = os.environ.get("KVCACHED_TEST_MODEL")
        self.model = Path(made) if made else make_tiny_llama(folder / "model", shape)

    def environment(self, *, upstream: bool = False, in_process: bool = False) -> dict[str, str]:
        paths = [str(TESTS)]
        if upstream:
            found = (UPSTREAM / self.package).is_dir()
            assert found, f"{UPSTREAM}: no unpatched {self.package}; run ci/env.sh"
            paths.insert(0, str(UPSTREAM))
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",  # idle threads spin, and the machine may have two cores
            "TORCHDYNAMO_DISABLE": "1",  # else warm-up loads a compiler that nothing here uses
            **self.variables(in_process),
            **self._more,
        }

    def variables(self, in_process: bool) -> dict[str, str]:
        """The engine's own."""
        return {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # "auto" puts all engines on one processor
            "VLLM_NO_USAGE_STATS": "1",
        }

    def run(
        self, name: str, job: dict[str, Any], *, upstream: bool = False, in_process: bool = False
    ) -> Run:
        """The run called `name`, made now if it was not made before."""
        if name not in self._runs:
            env = self.environment(upstream=upstream, in_process=in_process)
            env.update(job.get("environment", {}))
            self._runs[name] = self._execute(name, job, env)
        return self._runs[name]

    def elastic(self, name: str, storage: dict[str, Any], **job: Any) -> Run:
        """A run of the fork with elastic storage; `storage` on top of a budget of its own."""
        in_process = job.pop("in_process", False)
        return self.run(name, self._elastic_job(name, storage, job), in_process=in_process)

    def start_elastic(self, name: str, storage: dict[str, Any], **job: Any) -> Started:
        """Such a run, started and not waited for; the caller ends it."""
        env = self.environment(in_process=job.pop("in_process", False))
        env.update(job.get("environment", {}))
        return self.spawn(name, self._elastic_job(name, storage, job), env)

    def _elastic_job(
        self, name: str, storage: dict[str, Any], job: dict[str, Any]
    ) -> dict[str, Any]:
        engine = {
            "kv_storage_backend": "kvcached",
            "kv_storage_config": self.storage(name, **storage),
            **job.pop("engine", {}),
        }
        return {"engine": engine, **job}

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
        command = [sys.executable, str(self.scripts / script), str(given), str(made)]
        return self.launch(name, command, env)

    def launch(self, name: str, command: list[str], env: dict[str, str]) -> Started:
        """Starts any command of an engine in a session of its own."""
        log, made = self._folder / f"{name}.log", self._folder / f"{name}.result"
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
