"""Drives one engine by hand, in this process, through scenarios; writes what happened as JSON.

    python tests/engine/behave.py JOB.json RESULT.json   (with tests/ on PYTHONPATH)

The job: ``model``; ``engine``, arguments of LLM beside the runner's; ``scenarios``, names of
functions below, in order; ``delay_cycles``, how much later than it could a CUDA device begins each
step; ``unfenced``, as the runner's. The scheduler half and the rank share this process
(VLLM_ENABLE_V1_MULTIPROCESSING=0), so every step is ours to make.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine import observe, workload
from engine.runner import ENGINE


class Driver:
    """Adds requests of the workload and steps the engine; remembers the tokens by index."""

    def __init__(self, llm: Any, count: int, stop: Sequence[int] = ()) -> None:
        from vllm import SamplingParams, TokensPrompt

        self.engine = llm.llm_engine
        self.llm = llm
        self.storage = observe.core(llm).scheduler.kv_storage
        self.tokens: dict[int, list[int]] = {}
        pairs = zip(workload.prompts(count), workload.output_lengths(count), strict=True)
        for index, (prompt, length) in enumerate(pairs):
            self.engine.add_request(
                str(index),
                TokensPrompt(prompt_token_ids=prompt),
                SamplingParams(
                    temperature=0, max_tokens=length, ignore_eos=True, stop_token_ids=list(stop)
                ),
            )

    def step(self) -> None:
        for output in self.engine.step():
            if output.finished and output.outputs[0].finish_reason != "abort":
                self.tokens[int(output.request_id)] = list(output.outputs[0].token_ids)

    def running(self) -> list[int]:
        scheduler = observe.core(self.llm).scheduler
        return [int(request.request_id.split("-")[0]) for request in scheduler.running]

    def rest(self) -> None:
        observe.rest(self.llm)

    def state(self) -> dict[str, int]:
        self.storage.ledger.check_integrity()
        return {
            "used": self.storage.ledger.num_used(),
            "cached": self.storage.ledger.num_cached(),
            "owned": self.storage.ledger.pages("owned"),
        }


def abort(llm: Any) -> dict[str, Any]:
    """Every fifth step a running request is aborted, alternately the oldest and the newest."""
    return _with_aborts(Driver(llm, 120))


def hasty(llm: Any) -> dict[str, Any]:
    """As `abort`, and most answers end by a token. Where steps are scheduled ahead, the next one is
    under way by then and reads the blocks that are given back."""
    return _with_aborts(Driver(llm, 200, workload.STOP_TOKENS))


def _with_aborts(driver: Driver) -> dict[str, Any]:
    aborted: list[int] = []
    step = 0
    while driver.engine.has_unfinished_requests():
        driver.step()
        step += 1
        if step % 5 == 0 and (running := driver.running()):
            victim = running[0 if step % 2 else -1]
            aborted.append(victim)
            driver.engine.abort_request([str(victim)])
            driver.tokens.pop(victim, None)
    driver.rest()
    return {"tokens": driver.tokens, "aborted": aborted, **driver.state()}


def reset(llm: Any) -> dict[str, Any]:
    """The prefix cache is dropped while requests run: in vain, then with all of them preempted."""
    driver = Driver(llm, 80)
    answers: list[bool] = []
    step = 0
    while driver.engine.has_unfinished_requests():
        driver.step()
        step += 1
        if step % 40 == 20:
            answers.append(driver.engine.reset_prefix_cache())
        if step % 40 == 39:
            answers.append(driver.engine.reset_prefix_cache(reset_running_requests=True))
    driver.rest()
    found = {"tokens": driver.tokens, "answers": answers, "cached_before": driver.state()["cached"]}
    assert driver.engine.reset_prefix_cache()
    driver.rest()
    return {**found, **driver.state()}


def steady(llm: Any) -> dict[str, Any]:
    """Counts system and driver calls in our hooks over ten thousand steps at a full limit."""
    from support.syscalls import Counter

    _play(llm, 1_000)  # the limit is reached, and what is free holds prefixes
    rank = observe.core(llm).model_executor.driver_worker.worker.kv_storage._rank
    counter = Counter()
    hooks = _mark_hooks(llm, counter)
    before = rank.counters()
    steps = _play(llm, 10_000)
    after, found = rank.counters(), counter.stop()
    return {"steps": steps, "hooks": hooks, **found, "driver": {"before": before, "after": after}}


def _play(llm: Any, steps: int) -> int:
    """Decodes two requests at a time, which fit, for at least so many steps; returns how many."""
    from vllm import SamplingParams, TokensPrompt

    made = number = 0
    while made < steps:
        for _ in range(2):
            number += 1
            llm.llm_engine.add_request(
                f"{steps}-{number}",
                TokensPrompt(prompt_token_ids=[4 + number % 256, 5, 6]),
                SamplingParams(temperature=0, max_tokens=480, ignore_eos=True),
            )
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
            made += 1
    return made


def _mark_hooks(llm: Any, counter: Any) -> dict[str, int]:
    """Puts markers round every hook of both halves and of the queue; counts calls by name."""
    block = observe.core(llm).scheduler.kv_storage
    worker = observe.core(llm).model_executor.driver_worker.worker.kv_storage
    queue = observe.core(llm).scheduler.kv_cache_manager.block_pool.free_block_queue
    calls: dict[str, int] = {}
    names = {
        block: ["admit", "reserve", "num_available_blocks", "take_update", "on_blocks_uncached"],
        worker: ["begin_step", "end_step"],
    }
    for owner, methods in names.items():
        for name in methods:
            setattr(owner, name, _marked(getattr(owner, name), name, counter, calls))
    pool = observe.core(llm).scheduler.kv_cache_manager.block_pool
    pool.free_block_queue = _MarkedQueue(queue, counter, calls)
    return calls


def _marked(original: Any, name: str, counter: Any, calls: dict[str, int]) -> Any:
    depth = [0]

    def marked(*arguments: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        depth[0] += 1
        if depth[0] == 1:
            counter.mark()
        try:
            return original(*arguments)
        finally:
            depth[0] -= 1
            if depth[0] == 0:
                counter.mark()

    return marked


class _MarkedQueue:
    def __init__(self, queue: Any, counter: Any, calls: dict[str, int]) -> None:
        self._queue = queue
        for name in ("popleft_n", "append_n", "prepend_n", "remove"):
            setattr(self, name, _marked(getattr(queue, name), name, counter, calls))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def main() -> None:
    from vllm import LLM

    job = json.loads(Path(sys.argv[1]).read_text())
    if job.get("delay_cycles"):
        observe.delay_device(job["delay_cycles"])
    if job.get("unfenced"):
        observe.skip_fences()
    llm = LLM(job["model"], **{**ENGINE, **job.get("engine", {})})
    result = {name: globals()[name](llm) for name in job["scenarios"]}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
