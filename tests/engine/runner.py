"""Runs one engine over the workload in a process of its own and writes what happened as JSON.

    python tests/engine/runner.py JOB.json RESULT.json   (with tests/ on PYTHONPATH)

The job: ``model``; ``engine``, arguments of LLM beside those below; ``count`` of requests;
``inside``, whether to record what the in-process shape shows (VLLM_ENABLE_V1_MULTIPROCESSING=0);
``mutant``, a kind of harm and the step before which it is done; ``unfenced``, whether pages go
before the work that reads them is done; ``neighbour``, what another member of the budget needs
once the engine is idle; ``gate``, a file that is waited for before the first
request; ``rounds``, how often the workload is repeated; ``bursts``, how many short bursts follow;
``sleeps``, how many requests are running at each sleep that follows; ``adapters``, folders of LoRA
adapters or null for none: each prompt is asked with each of them; ``reset``, whether to drop the
prefix cache at the end; ``busy``, a file until which the workload is repeated; ``cycles``, how
often to sleep and wake with nothing running, looking at the device behind ``record`` (directory and
key); ``logprobs``, whether to tell, as ``gaps``, by how much each token was likelier than the next
best one (difference of logarithms); ``most_tokens``, of an answer; ``one_by_one``, whether a
request is sent when the one before it has its answer; ``referee``, what referee.py is to do with
the backend: arguments of Referee.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

from engine import beside, observe, referee, workload

# Five thousand modules are imported, also by processes that it spawns, and the collector would take
# a fifth of that time for nothing.
gc.set_threshold(20_000)

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 128,
    "block_size": 32,
    "disable_log_stats": False,
    "seed": 0,
    "kv_cache_memory_bytes": 64 << 20,  # 1,024 blocks of 32 tokens of the tiny model
}

READY = "the runner's engine is ready"  # a line of the log
GATE_S = 900  # guards against a hang


def run(job: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams, TokensPrompt

    inside = observe.Inside() if job.get("inside") else None
    mutant = observe.Mutant(*job["mutant"]) if job.get("mutant") else None
    readable = observe.Readable() if job.get("readable") else None
    judge = referee.Referee(**job["referee"]) if job.get("referee") else None
    if job.get("unfenced"):
        observe.skip_fences()
    began = time.monotonic()
    llm = LLM(job["model"], **{**ENGINE, **job.get("engine", {})})
    result: dict[str, Any] = {"start_seconds": time.monotonic() - began}
    print(READY, flush=True)
    result["fork"] = importlib.util.find_spec("vllm.v1.kv_storage") is not None
    if inside is not None:
        result["compute_hash"] = llm.llm_engine.vllm_config.compute_hash()
    if mutant is not None:
        mutant.arm(llm)
    if judge is not None:
        judge.arm(llm)
    count = job.get("count", 200)
    adapters = _adapters(job.get("adapters", [None]))
    asked = workload.prompts(-(-count // len(adapters)))
    prompts = [TokensPrompt(prompt_token_ids=p) for p in asked for _ in adapters][:count]
    lengths = [min(n, job.get("most_tokens", n)) for n in workload.output_lengths(count)]
    more = {"logprobs": 2} if job.get("logprobs") else {}
    samplings = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, **more) for n in lengths
    ]
    memory = observe.Memory()
    if job.get("gate"):
        _wait_for(Path(job["gate"]))
    began = time.monotonic()
    loras = (adapters * len(asked))[:count]
    outputs = _generate(llm, prompts, samplings, loras, 1 if job.get("one_by_one") else count)
    result["run_seconds"] = time.monotonic() - began
    result["tokens"] = [list(o.outputs[0].token_ids) for o in outputs]
    if job.get("logprobs"):
        result["gaps"] = [[_gap(choice) for choice in o.outputs[0].logprobs] for o in outputs]
    result["request_ids"] = [o.request_id for o in outputs]
    result["metrics"] = observe.metrics(llm)
    result.update(_after(job, llm, (prompts, samplings), memory))
    result["memory_peak"] = memory.stop()
    if inside is not None:
        result["inside"] = inside.report(llm)
    if readable is not None:
        result["readable"] = {**vars(readable)}
    if mutant is not None:
        result["owners"] = mutant.owners
    if judge is not None:
        result["memory"] = judge.report()
        llm.llm_engine.engine_core.shutdown()
        result["referee"] = judge.result()
    return result


def _generate(
    llm: Any, prompts: list[Any], samplings: list[Any], loras: list[Any], at_once: int
) -> list[Any]:
    outputs = []
    for i in range(0, len(prompts), at_once):
        part = slice(i, i + at_once)
        outputs += llm.generate(
            prompts[part], samplings[part], use_tqdm=False, lora_request=loras[part]
        )
    return outputs


def _adapters(folders: list[str | None]) -> list[Any]:
    """vLLM's handle of each."""
    from vllm.lora.request import LoRARequest

    return [f and LoRARequest(Path(f).name, i, f) for i, f in enumerate(folders, 1)]


def _gap(choice: dict[int, Any]) -> float:
    best, second = sorted((entry.logprob for entry in choice.values()), reverse=True)[:2]
    return float(best - second)


def _after(
    job: dict[str, Any], llm: Any, requests: tuple[list[Any], list[Any]], memory: observe.Memory
) -> dict[str, Any]:
    """What the job asks for behind the first run."""

    def tokens() -> list[list[int]]:
        return [list(o.outputs[0].token_ids) for o in llm.generate(*requests, use_tqdm=False)]

    result: dict[str, Any] = {}
    if job.get("rest"):
        observe.rest(llm)
    result["memory_after_run"] = memory.settle()
    if job.get("neighbour"):
        from engine.neighbour import need_memory

        directory, device, want = job["neighbour"]
        result["neighbour"] = need_memory(Path(directory), device, want)
        result["memory_after_neighbour"] = memory.settle()
        result["tokens_again"] = tokens()
    if job.get("rounds"):
        result["tokens_again"] = [tokens() for _ in range(job["rounds"])]
    if job.get("bursts"):
        mark = result["memory_after_run"]
        bursts = [_burst(llm, requests[0][:6], memory, mark) for _ in range(job["bursts"])]
        result["bursts"], result["memory_after_bursts"] = bursts, memory.settle()
    if job.get("sleeps"):
        result["sleeps"] = [_sleep(llm, requests[0][:n], memory) for n in job["sleeps"]]
        result["tokens_awake"] = tokens()
    if job.get("busy"):
        result["busy"] = beside.busy(tokens, Path(job["busy"]))
    if job.get("cycles"):
        result["cycles"] = beside.cycles(llm, tokens, job["cycles"], job["record"])
    if job.get("reset"):
        result["reset"] = llm.reset_prefix_cache()
        result["memory_after_reset"] = memory.settle()
    return result


def _wait_for(gate: Path) -> None:
    end = time.monotonic() + GATE_S
    while not gate.exists():
        assert time.monotonic() < end, f"{gate} did not open"
        time.sleep(0.01)


def _burst(llm: Any, prompts: list[Any], memory: observe.Memory, mark: int) -> list[int]:
    """Short requests; bytes held while they ran, and once they are down to the mark."""
    from vllm import SamplingParams

    memory.peak = 0
    short = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    llm.generate(prompts, short, use_tqdm=False)
    return [max(memory.peak, memory.now()), memory.fall(mark)]


def _sleep(llm: Any, prompts: list[Any], memory: observe.Memory) -> dict[str, int]:
    """Sleeps in the midst of these requests, which are lost, and wakes; bytes held and floor."""
    from vllm import SamplingParams

    endless = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    ids = [f"lost-{i}" for i in range(len(prompts))]
    ids = [
        llm.llm_engine.add_request(name, prompt, endless)
        for name, prompt in zip(ids, prompts, strict=True)
    ]
    for _ in prompts:
        llm.llm_engine.step()
    before = memory.now()
    llm.sleep(level=1, mode="abort")
    llm.llm_engine.abort_request(ids, internal=True)
    asleep = {"held": memory.settle(quiet=0.3), "held_before": before, "floor": _floor(llm)}
    llm.sleep(level=1)  # once more is nothing
    llm.wake_up(["weights"])
    asleep["floor_with_weights"] = _floor(llm)
    llm.wake_up()
    return {**asleep, "floor_awake": _floor(llm)}


def _floor(llm: Any) -> int:
    from kvcached_core.budget import open_device_budget

    storage = llm.llm_engine.vllm_config.cache_config.kv_storage_config
    budget = open_device_budget(Path(storage["budget_dir"]), f"host:{storage['budget']}")
    return sum(row.floor for row in budget.rows())


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(run(job)))


if __name__ == "__main__":
    main()
