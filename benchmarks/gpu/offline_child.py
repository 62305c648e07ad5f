"""An engine in a process of its own that does what it is told, a line of JSON at a time.

It reads commands from stdin and answers each with one line on stdout; all else that is printed,
by whatever library, goes to stderr. The end of stdin ends it.

    {"do": "start", "model": DIR, "vocabulary": N, "engine": {...}, "spawned": UNIX_TIME}
    {"do": "generate", "requests": N, "prompt": N, "output": N, "seed": N}
    {"do": "counters"}

An answer is {"ok": {...}}, or {"error": TEXT}, after which it ends.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol


class Engine(Protocol):
    """Raises whatever goes wrong; that is answered as the error."""

    about: dict[str, Any]
    """The answer to the start."""

    def generate(self, requests: int, prompt: int, output: int, seed: int) -> dict[str, Any]:
        """`seconds`, and `tokens_per_s`: of prompts and outputs together. Lengths are in tokens."""

    def counters(self) -> dict[str, Any]:
        """`counters` of its rank since the start, or None and `why`. Never raises."""


def serve(start: Callable[[dict[str, Any]], Engine]) -> int:
    """Obeys until stdin ends; returns the exit status. `start` gets the start's command."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            engine, answer = _obey(command.pop("do"), command, engine, start)
        except BaseException as error:
            traceback.print_exc()
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}), file=answers)
            return 1
        print(json.dumps({"ok": answer}), file=answers)
    return 0


def _obey(
    do: str,
    command: dict[str, Any],
    engine: Engine | None,
    start: Callable[[dict[str, Any]], Engine],
) -> tuple[Engine, dict[str, Any]]:
    if do == "start":
        engine = start(command)
        return engine, {**engine.about, "from_spawn_s": round(time.time() - command["spawned"], 1)}
    if engine is None:
        raise RuntimeError(f"{do} before start")
    if do == "generate":
        return engine, engine.generate(**command)
    if do == "counters":
        return engine, engine.counters()
    raise RuntimeError(f"unknown command {do}")


def rank_counters(worker: Any) -> dict[str, int]:
    """Runs in the worker."""
    return dict(worker.kv_storage._rank.counters())


class Vllm:
    """See the protocol."""

    def __init__(self, command: dict[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415 - only this process has an engine

        from kvcached_core.provenance.vllm import provenance  # noqa: PLC0415 - imports vLLM

        began = time.monotonic()
        self._vocabulary = command["vocabulary"]
        self._llm = LLM(command["model"], **command["engine"])
        seconds = round(time.monotonic() - began, 1)
        self.about = {"start_s": seconds, **self._cache(), "build": provenance()}

    def _cache(self) -> dict[str, Any]:
        config = self._llm.llm_engine.vllm_config.cache_config
        return {"blocks": config.num_gpu_blocks, "block_size": config.block_size}

    def generate(self, requests: int, prompt: int, output: int, seed: int) -> dict[str, Any]:
        from vllm import SamplingParams  # noqa: PLC0415

        draw = random.Random(seed)
        least, end = self._vocabulary // 128, self._vocabulary * 3 // 4  # no special tokens
        prompts = [
            {"prompt_token_ids": [draw.randrange(least, end) for _ in range(prompt)]}
            for _ in range(requests)
        ]
        sampling = SamplingParams(
            max_tokens=output, temperature=0, ignore_eos=True, detokenize=False
        )
        began = time.monotonic()
        answers = self._llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.monotonic() - began
        lengths = {len(answer.outputs[0].token_ids) for answer in answers}
        if len(answers) != requests or lengths != {output}:
            raise RuntimeError(f"{len(answers)} answers of {sorted(lengths)} tokens")
        rate = round(requests * (prompt + output) / seconds)
        return {"seconds": round(seconds, 3), "tokens_per_s": rate}

    def counters(self) -> dict[str, Any]:
        try:
            return {"counters": self._llm.collective_rpc(rank_counters, timeout=20)[0]}
        except Exception as error:
            return {"counters": None, "why": f"{type(error).__name__}: {error}"[:500]}


if __name__ == "__main__":
    sys.exit(serve(Vllm))
