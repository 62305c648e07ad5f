"""Runs one SGLang engine over the workload and writes what happened as JSON.

    python tests/engine_sglang/runner.py JOB.json RESULT.json   (with tests/ on PYTHONPATH)

The job: ``model``; ``engine``, arguments of Engine beside those below; ``count`` of requests;
``logprobs``, whether to tell, as ``gaps``, by how much each token was likelier than the next one;
``attention``, what is changed in SGLang, by its name in attention.py;
``mutant``, the pass before which a page that requests read from is unmapped; ``gate``, a file that
is waited for before the first request; ``neighbour``, what another member of the budget needs once
the engine is idle; ``rounds``, how often the workload is repeated; ``busy``, a file until which it
is; ``bursts``, how many small ones follow, each when the last was idle; ``flush``, whether to drop
the prefixes then; ``sleeps``, whether to release the memory of the KV cache after that, resume, and
run them again; ``referee``, what referee.py is to do with the backend: arguments of Referee.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from engine import beside, workload
from engine.observe import Memory
from engine_sglang import attention, observe

ENGINE: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "grammar_backend": "none",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "context_length": 512,
    "max_total_tokens": 4096,
    "max_running_requests": 16,
    "chunked_prefill_size": 128,
    "random_seed": 0,
}


READY = "the runner's engine is ready"  # a line of the log
GATE_S = 900  # guards against a hang


def run(job: dict[str, Any]) -> dict[str, Any]:
    count = job.get("count", 200)
    os.environ[observe.GATE] = str(count)
    os.environ[observe.MUTANT] = str(job.get("mutant", 0))
    os.environ[observe.ATTENTION] = job.get("attention", "")
    os.environ[observe.REFEREE] = json.dumps(job["referee"]) if "referee" in job else ""
    import sglang
    from sglang.srt.entrypoints.engine import Engine as Upstream

    if job.get("attention"):  # arguments are checked in this process too
        attention.BY_NAME[job["attention"]]()

    class Engine(Upstream):  # type: ignore[misc]
        run_scheduler_process_func = staticmethod(observe.run_scheduler_process)

    began = time.monotonic()
    engine = Engine(model_path=job["model"], **{**ENGINE, **job.get("engine", {})})
    result: dict[str, Any] = {"start_seconds": time.monotonic() - began}
    kv_storage = "sglang.srt.mem_cache.kv_storage"
    result["fork"] = importlib.util.find_spec(kv_storage) is not None
    result["version"] = sglang.__version__
    print(READY, flush=True)
    memory = Memory()
    result["memory_at_start"] = memory.now()
    if job.get("gate"):
        _wait_for(Path(job["gate"]))
    began = time.monotonic()
    outputs = _generate(engine, count, logprobs=job.get("logprobs", False))
    result["run_seconds"] = time.monotonic() - began
    result["tokens"] = [output["output_ids"] for output in outputs]
    if job.get("logprobs"):
        result["gaps"] = [[_gap(best) for best in _best_two(output)] for output in outputs]
    result["retractions"] = sum(output["meta_info"]["num_retractions"] for output in outputs)
    result["cached_tokens"] = sum(output["meta_info"]["cached_tokens"] for output in outputs)
    result.update(_after(job, engine, memory))
    result["memory_peak"] = memory.stop()
    result["inside"] = _observed(engine)
    engine.shutdown()
    return result


def _after(job: dict[str, Any], engine: Any, memory: Memory) -> dict[str, Any]:
    """What the job asks for behind the first run."""

    def tokens() -> list[list[int]]:
        return [output["output_ids"] for output in _generate(engine, job.get("count", 200))]

    result: dict[str, Any] = {"memory_after_run": memory.settle()}
    if job.get("neighbour"):
        from engine.neighbour import need_memory

        directory, device, want = job["neighbour"]
        result["neighbour"] = need_memory(Path(directory), device, want)
        result["tokens_again"] = tokens()
    if job.get("rounds"):
        result["tokens_again"] = [tokens() for _ in range(job["rounds"])]
    if job.get("busy"):
        result["busy"] = beside.busy(tokens, Path(job["busy"]))
    if job.get("bursts"):
        result["bursts"] = [_burst(engine, number) for number in range(job["bursts"])]
    if job.get("flush"):
        _flush(engine)
        result["memory_flushed"] = memory.settle(quiet=3.0)
    if job.get("sleeps"):
        engine.release_memory_occupation(tags=["kv_cache"])
        result["memory_asleep"] = memory.now()
        result["asleep"] = _observed(engine)
        engine.resume_memory_occupation(tags=["kv_cache"])
        result["tokens_awake"] = tokens()
    return result


def _burst(engine: Any, number: int) -> list[Any]:
    """A few of the workload's requests, answered shortly; then it rests until it was checked."""
    before = _observed(engine)["checks"]["rests"]
    numbers = [(7 * number + i) % 200 for i in range(1 + number % 3)]
    prompts = workload.prompts()
    outputs = engine.generate(
        input_ids=[prompts[n] for n in numbers],
        sampling_params={"temperature": 0, "max_new_tokens": 4, "ignore_eos": True},
    )
    end = time.monotonic() + GATE_S
    while _observed(engine)["checks"]["rests"] <= before:
        assert time.monotonic() < end, "it was not checked"
    return [[n, output["output_ids"]] for n, output in zip(numbers, outputs, strict=True)]


def _flush(engine: Any) -> None:
    """Drops the prefixes, which SGLang refuses until its scheduler knows that nothing runs."""
    end = time.monotonic() + GATE_S
    while not engine.flush_cache().success:
        assert time.monotonic() < end, "it never rests"
        time.sleep(0.05)


def _wait_for(gate: Path) -> None:
    end = time.monotonic() + GATE_S
    while not gate.exists():
        assert time.monotonic() < end, f"{gate} did not open"
        time.sleep(0.01)


def _generate(engine: Any, count: int, *, logprobs: bool = False) -> list[Any]:
    lengths = workload.output_lengths(count)
    samplings = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in lengths]
    outputs: list[Any] = engine.generate(
        input_ids=workload.prompts(count),
        sampling_params=samplings,
        return_logprob=logprobs,
        top_logprobs_num=2 if logprobs else 0,
    )
    return outputs


def _best_two(output: Any) -> list[Any]:
    """For each token of the answer, what SGLang tells of the two likeliest: probability first."""
    found: list[Any] = output["meta_info"]["output_top_logprobs"]
    return found


def _gap(best: Any) -> float:
    likeliest, next_one = sorted((each[0] for each in best), reverse=True)
    return float(likeliest - next_one)


def _observed(engine: Any) -> Any:
    return engine.get_server_info()["internal_states"][0]["observed"]


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(run(job)))


if __name__ == "__main__":
    main()
