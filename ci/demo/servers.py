"""The engines as users start them: `vllm serve`, the fork, elastic."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from processes import Processes, last_lines
from scene import (
    BUDGET,
    CAPACITY,
    FLOOR,
    PAGE_BYTES,
    Places,
    command_line,
    cores_of,
)
from workload import Request

# Two idle cores need less than 60; others may be at work on them.
START_SECONDS = 420
ANSWER_SECONDS = 180
STOP_SECONDS = 60
# By default vLLM kills its engine process at once, which then cannot tidy up after itself.
GRACE_SECONDS = 20


class Failed(Exception):
    """Something did not go as it must; the text says what, and quotes the log."""


@dataclass
class Server:
    name: str
    log: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wait_until_ready(self, session: aiohttp.ClientSession) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise self.failure(f"ended at start with status {self.process.returncode}")
            try:
                async with session.get(f"{self.url}/health") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
        raise self.failure(f"was not ready after {START_SECONDS} s")

    async def complete(self, session: aiohttp.ClientSession, request: Request) -> list[int]:
        """The token ids of the answer. Raises Failed."""
        body = {
            "model": self.name,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        try:
            url = f"{self.url}/v1/completions"
            async with session.post(url, json=body, timeout=limit) as reply:
                text = await reply.text()
                if reply.status != 200:
                    raise self.failure(f"answered with status {reply.status}: {text[:300]}")
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise self.failure(f"did not answer ({type(error).__name__}: {error})") from error
        return list(json.loads(text)["choices"][0]["token_ids"])

    async def preemptions(self, session: aiohttp.ClientSession) -> int:
        """Requests that gave their memory up and were computed again, since the start."""
        async with session.get(f"{self.url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        counts = [line for line in lines if line.startswith("vllm:num_preemptions_total")]
        return int(sum(float(line.split()[-1]) for line in counts))

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int | None:
        """Its exit status; None when it did not end in time."""
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def failure(self, what: str) -> Failed:
        end = "\n  | ".join(last_lines(self.log))
        return Failed(f"server {self.name} {what}\n  | {end}")


def start_elastic(processes: Processes, places: Places, model: str) -> Server:
    """An engine that maps memory of the common budget while it needs it."""
    config = {
        "budget": BUDGET,
        "budget_dir": str(places.budget),
        "capacity": CAPACITY,
        "floor": FLOOR,
        "page_size": PAGE_BYTES,
        "name": model,
    }
    port = _free_port()
    command = _serve(places, model, port)
    command += ["--kv-storage-backend", "kvcached", "--kv-storage-config", json.dumps(config)]
    log = places.log(f"server-{model}")
    return Server(model, log, port, processes.start(command, log, _cores(model)))


def _cores(model: str) -> dict[str, str]:
    return {"VLLM_CPU_OMP_THREADS_BIND": cores_of(model)}


def _serve(places: Places, model: str, port: int) -> list[str]:
    return [
        *(str(Path(sys.executable).parent / "vllm"), "serve", str(places.model(model))),
        *("--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--shutdown-timeout", str(GRACE_SECONDS), *command_line()),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
