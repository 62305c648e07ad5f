#!/usr/bin/env python3
"""The clients of one server, in a process of their own; started by online.py.

    python benchmarks/gpu/load.py JOB.json RESULT.json

The job: ``url``; ``start``, an instant of the system's monotonic clock, from which the rate of
requests rises from 0 to ``peak`` a second within ``up`` seconds and falls to 0 within as many;
``prompt`` and ``output``, tokens a request; ``tokens``, how many ids there are to draw from;
``seed``; ``warm``, requests that are sent at once before that and not told.

The result: a list of requests, each with ``at`` (seconds after `start` when it was due), ``late``
(how long after that it was sent: what the client adds), ``first`` and ``last`` (seconds until the
first and the last piece of the answer, counted from sending), ``error`` (empty if the answer was
whole).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_S = 300


def arrivals(peak: float, up: float) -> list[float]:
    """Seconds from the start: `peak * up` requests, the rate a triangle with that peak."""
    count = round(peak * up)
    rising = [math.sqrt(2 * up * number / peak) for number in range((count + 1) // 2)]
    falling = [2 * up - instant for instant in reversed(rising[: count // 2])]
    return rising + falling


def prompts(job: dict[str, Any], count: int) -> list[list[int]]:
    draw = random.Random(job["seed"])
    return [[draw.randrange(job["tokens"]) for _ in range(job["prompt"])] for _ in range(count)]


async def ask(
    session: aiohttp.ClientSession, job: dict[str, Any], prompt: list[int], due: float
) -> dict[str, Any]:
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": job["output"],
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent = time.monotonic()
    found: dict[str, Any] = {"late": sent - due, "first": None, "last": None, "error": ""}
    try:
        async with session.post("/v1/completions", json=body) as reply:
            if reply.status != 200:
                raise RuntimeError(f"status {reply.status}: {(await reply.text())[:200]}")
            tokens = 0
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                now, piece = time.monotonic() - sent, json.loads(line[6:])
                if piece.get("choices"):
                    found["last"] = now
                    found["first"] = now if found["first"] is None else found["first"]
                tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
            if tokens != job["output"]:
                raise RuntimeError(f"{tokens} tokens came of {job['output']}")
    except (aiohttp.ClientError, asyncio.TimeoutError, RuntimeError, ValueError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


async def run(job: dict[str, Any]) -> list[dict[str, Any]]:
    instants = arrivals(job["peak"], job["up"])
    texts = prompts(job, job["warm"] + len(instants))
    limit = aiohttp.ClientTimeout(total=PATIENCE_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(job["url"], connector=connector, timeout=limit) as session:
        warm = [ask(session, job, texts.pop(), time.monotonic()) for _ in range(job["warm"])]
        await asyncio.gather(*warm)
        asked = [
            ask(session, job, text, job["start"] + at)
            for text, at in zip(texts, instants, strict=True)
        ]
        answers = await asyncio.gather(*asked)
    return [{"at": at, **answer} for at, answer in zip(instants, answers, strict=True)]


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(run(job))))


if __name__ == "__main__":
    main()
