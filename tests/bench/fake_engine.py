"""A child of offline.py without an engine. FAKE_LOG is a file to which each command's begin and end
are appended; FAKE says how it fails. With FAKE_MEETS a start ends only after so many have begun.
FAKE_MIB is a file that a fake nvidia-smi shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"))

from offline_child import serve

FAKE = os.environ.get("FAKE", "")
NAME = os.environ.get("FAKE_NAME", "?")
LOG = Path(os.environ["FAKE_LOG"])
MIB = Path(os.environ["FAKE_MIB"]) if "FAKE_MIB" in os.environ else None
RATES = [int(rate) for rate in os.environ.get("FAKE_RATES", "100").split()]


def note(*words: Any) -> None:
    with LOG.open("a") as log:
        log.write(" ".join(map(str, (NAME, *words))) + "\n")


def hang(*, stubborn: bool = False) -> None:
    """With a child of its own in its group, as an engine has. Stubborn: neither heeds SIGTERM."""
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("pids", os.getpid(), subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)


def meet(others: int) -> None:
    """Gives up after a while: then the log shows that they did not."""
    end = time.monotonic() + 30
    while LOG.read_text().count("start begin") < others and time.monotonic() < end:
        time.sleep(0.02)


class FakeEngine:
    def __init__(self, command: dict[str, Any]) -> None:
        note("start", "begin")
        if os.environ.get("ENABLE_KVCACHED"):
            note("enabled")
        print("a line of the log of", NAME, flush=True)
        time.sleep(0.3)
        meet(int(os.environ.get("FAKE_MEETS", "1")))
        if FAKE == "hangs at start":
            hang()
        if FAKE == "fails at start":
            raise RuntimeError("no engine today")
        self.about = {"start_s": 0.3, "blocks": command["engine"].get("kv_cache_memory_bytes")}
        self._created = 0
        note("start", "end")

    def generate(self, requests: int, prompt: int, output: int, seed: int) -> dict[str, Any]:
        note("generate", seed, "begin")
        if seed == 2 and FAKE == "dies in round 2":
            os._exit(7)
        if seed == 2 and FAKE == "hangs in round 2":
            hang()
        if seed == 2 and FAKE == "is stubborn in round 2":
            hang(stubborn=True)
        if seed == 2 and FAKE == "babbles in round 2":
            os.write(3, b"what?\n")
        time.sleep(0.05)
        self._created += requests
        if MIB:
            MIB.write_text("900")
            threading.Timer(0.3, lambda: MIB.write_text("150" if seed == 2 else "100")).start()
        note("generate", seed, "end")
        return {"seconds": 0.05, "tokens_per_s": RATES[seed % len(RATES)]}

    def counters(self) -> dict[str, Any]:
        if FAKE == "has no counters":
            return {"counters": None, "why": "nobody counts"}
        return {"counters": {"created": self._created}}


if __name__ == "__main__":
    sys.exit(serve(FakeEngine))
