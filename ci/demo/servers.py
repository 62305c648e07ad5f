"""Servers as users start them, asked through the interface that OpenAI's clients use."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
from processes import last_lines
from workload import Answer, Request

# Two idle cores need less than 60; others may be at work on them.
START_SECONDS = 420
ANSWER_SECONDS = 180
STOP_SECONDS = 60


class Failed(Exception):
    """Something did not go as it must; the text says what, and quotes the log."""


@dataclass
class Server:
    name: str
    log: Path
    port: int
    process: subprocess.Popen[bytes]

    asks: ClassVar[dict[str, Any]]
    """What is asked for beside what all are."""

    def read(self, choice: dict[str, Any]) -> Answer:
        """The answer, so that no other tokens would read the same."""
        raise NotImplementedError

    async def restarts(self, session: aiohttp.ClientSession) -> int:
        """Requests that gave their memory up and were computed again, since the start."""
        raise NotImplementedError

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

    async def complete(self, session: aiohttp.ClientSession, request: Request) -> Answer:
        """The answer. Raises Failed."""
        body = {
            "model": self.name,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **self.asks,
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
        return self.read(json.loads(text)["choices"][0])

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
