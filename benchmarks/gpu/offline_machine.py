"""What machine and versions a run was on, and how much of the device is in use. The parent opens
nothing on the device: all is asked of nvidia-smi."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import distributions

_PACKAGES = ("kvcached", "vllm", "sglang", "transformers", "torch", "triton", "flashinfer")


class Gpu:
    """The first GPU that this process may use. Where nvidia-smi says nothing, numbers are None and
    `why` is the reason."""

    def __init__(self) -> None:
        self._index = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        self.why: str | None = None

    def used_mib(self) -> int | None:
        """Of the whole device, whoever uses it."""
        try:
            return int(self._query("gpu=memory.used")[0])
        except (IndexError, ValueError) as error:
            self.why = self.why or f"nvidia-smi tells no memory in use: {error}"
            return None

    def process_mib(self) -> dict[int, int]:
        """By session (of an engine, the id of its process); in a container often nothing."""
        found: dict[int, int] = {}
        for line in self._query("compute-apps=pid,used_memory"):
            pid, mib = (word.strip() for word in line.split(","))
            try:
                session = os.getsid(int(pid))
                found[session] = found.get(session, 0) + int(mib)
            except (ProcessLookupError, ValueError):  # of another container, or "[N/A]"
                continue
        return found

    def about(self) -> dict[str, str | int | None]:
        """Names and sizes for the result."""
        lines = self._query("gpu=name,memory.total,driver_version")
        keys = ("gpu", "gpu_mib", "driver")
        found: dict[str, str | int | None] = dict.fromkeys(keys)
        if lines:
            found |= zip(keys, (word.strip() for word in lines[0].split(",")), strict=True)
        return {**found, "why": self.why, "cpus": len(os.sched_getaffinity(0))}

    def _query(self, what: str) -> list[str]:
        command = ["nvidia-smi", "-i", self._index, f"--query-{what}"]
        try:
            done = subprocess.run(
                [*command, "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self.why = f"{type(error).__name__}: {error}"
            return []
        return done.stdout.strip().splitlines()


def versions() -> dict[str, str]:
    """Of what is installed here, and Python's."""
    found = {d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"]}
    wanted = {name: found[name] for name in sorted(found) if name.startswith(_PACKAGES)}
    return {**wanted, "python": platform.python_version()}
