"""One engine as users start it, `vllm serve`, and what a client sees of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.processes import DEADLINE_S, Engines, Started
from engine.runner import ENGINE
from support.command_line import options
from support.ports import free_port

GRACE_S = 60  # for vLLM to end by itself after SIGTERM; by default it kills its engine at once


@dataclass
class Server:
    started: Started
    port: int

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        limit = aiohttp.ClientTimeout(total=DEADLINE_S)
        url = f"http://127.0.0.1:{self.port}"
        async with aiohttp.ClientSession(url, timeout=limit) as session:
            yield Client(session)

    def terminate(self) -> None:
        self.started.process.send_signal(signal.SIGTERM)


@dataclass
class Client:
    session: aiohttp.ClientSession

    async def is_ready(self) -> bool:
        try:
            async with self.session.get("/health") as reply:
                return reply.status == 200
        except aiohttp.ClientError:
            return False

    async def complete(self, prompt: list[int], length: int) -> list[int]:
        """The token ids of the greedy answer."""
        async with self.session.post("/v1/completions", json=_body(prompt, length)) as reply:
            text = await reply.text()
            assert reply.status == 200, text
        return list(json.loads(text)["choices"][0]["token_ids"])

    async def leave_early(self, prompt: list[int], length: int, pieces: int) -> int:
        """Goes away after so many pieces of a streamed answer; how many tokens these had."""
        body = {**_body(prompt, length), "stream": True}
        tokens = 0
        async with self.session.post("/v1/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
            while pieces and (line := await reply.content.readline()):
                if line.startswith(b"data: {"):
                    tokens += len(json.loads(line[6:])["choices"][0]["token_ids"])
                    pieces -= 1
            reply.close()  # the connection: what is left is not waited for
        assert pieces == 0, "the answer was over"
        return tokens

    async def metrics(self) -> dict[str, float]:
        """Counters and gauges by name, summed over their labels."""
        async with self.session.get("/metrics") as reply:
            lines = (await reply.text()).splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if line.startswith("vllm:"):
                name, value = line.partition("{")[0], float(line.rpartition(" ")[2])
                found[name] = found.get(name, 0.0) + value
        return found


async def until(holds: Any, started: Started, what: str) -> None:
    """Waits for a coroutine function to say yes, while the server lives."""
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while not await holds():
        assert started.process.poll() is None, f"ended before {what}:\n{started.run().log[-4000:]}"
        assert asyncio.get_running_loop().time() < end, f"never: {what}"
        await asyncio.sleep(0.02)


def serve(engines: Engines, name: str, storage: dict[str, Any], **engine: Any) -> Server:
    """Starts a server of the tests' model with the runner's arguments and `engine`'s; the caller
    ends it."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(engines.model)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--shutdown-timeout", str(GRACE_S), *options({**ENGINE, **engine})]
    command += ["--kv-storage-backend", "kvcached"]
    command += ["--kv-storage-config", json.dumps(engines.storage(name, **storage))]
    return Server(engines.launch(name, command, engines.environment()), port)


MODEL = "tiny"


def _body(prompt: list[int], length: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
