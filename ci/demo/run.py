"""Two engines share one budget and answer as upstream does. Started by ci/demo.sh.

python run.py FOLDER UPSTREAM: a folder of its own, which the caller removes, and where upstream's
release lies. Must lead its process group. Exits with 0 if all is as promised, else with 1.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent.parent / "tests")]

import aiohttp  # noqa: E402
from expected import Answers  # noqa: E402
from memory import Sampler  # noqa: E402
from processes import Processes, last_lines, wait_for  # noqa: E402
from report import Outcome, Played  # noqa: E402
from scene import (  # noqa: E402
    CAPACITY,
    HALF,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    MAX_MODEL_LEN,
    MIB,
    MODELS,
    SEEDS,
    Places,
    cores_of,
)
from servers import START_SECONDS, Failed, Server, start_elastic, start_static_half  # noqa: E402
from transformers.utils.logging import disable_progress_bar  # noqa: E402
from workload import Burst, bursts, save  # noqa: E402

from support.tiny_model import TinyLlama, make_tiny_llama  # noqa: E402

EXPECTED_SECONDS = 600
_BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"demo: [{time.monotonic() - _BEGAN:4.0f} s] {text}", flush=True)


def environment(places: Places) -> dict[str, str]:
    """No network, no statistics, nothing written outside of the demo's folder."""
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": str(places.root / "cache"),
        # Compiling takes each engine 20 s at start, and eager engines do not use the result.
        "TORCHDYNAMO_DISABLE": "1",
    }


def make_models(places: Places) -> None:
    disable_progress_bar()  # type: ignore[no-untyped-call]
    for name in MODELS:
        shape = TinyLlama(
            layers=LAYERS,
            hidden=HIDDEN,
            heads=HEADS,
            kv_heads=HEADS,
            head_dim=HEAD_DIM,
            max_positions=MAX_MODEL_LEN,
            seed=SEEDS[name],
            std=0.1,
        )
        make_tiny_llama(places.model(name), shape)


def start_upstream(processes: Processes, places: Places, upstream: Path) -> subprocess.Popen[bytes]:
    extra = {
        "PYTHONPATH": f"{upstream}:{HERE}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": cores_of(MODELS[0]),
    }
    command = [sys.executable, str(HERE / "expected.py"), str(places.root)]
    return processes.start(command, places.log("upstream"), extra)


def finish_upstream(process: subprocess.Popen[bytes], places: Places) -> Answers:
    try:
        status: int | None = process.wait(EXPECTED_SECONDS)
    except subprocess.TimeoutExpired:
        status = None
    if status != 0:
        end = "\n  | ".join(last_lines(places.log("upstream")))
        raise Failed(f"upstream ended with status {status}\n  | {end}")
    found: Answers = json.loads(places.expected.read_text())
    return found


def refusal_of(half: Server) -> str:
    """Why an engine with a fixed half does not start; empty if it did, or for another reason."""
    if not wait_for(lambda: half.process.poll() is not None, START_SECONDS):
        half.process.kill()
        return ""
    said = last_lines(half.places.log("server-half"), ["KV cache is needed"], 1)
    if half.process.returncode == 0 or not said:
        return ""
    return said[0].partition("ValueError: ")[2] or said[0]


async def play(
    burst: Burst,
    expected: list[list[int]],
    servers: dict[str, Server],
    sampler: Sampler,
    session: aiohttp.ClientSession,
) -> Played:
    mark, begun = sampler.mark(), time.monotonic()
    answers = await asyncio.gather(
        *(servers[request.model].complete(session, request) for request in burst.requests)
    )
    seconds, samples = time.monotonic() - begun, sampler.since(mark)
    await asyncio.sleep(1)
    right = sum(found == wanted for found, wanted in zip(answers, expected, strict=True))
    played = Played(burst.label, len(answers), right, seconds, samples, sampler.now())
    peaks = ", ".join(f"{m} {played.peak(i) // MIB} MiB" for i, m in enumerate(MODELS))
    say(f"  {burst.label}: {right} of {len(answers)} right in {seconds:.1f} s; peaks {peaks}")
    return played


async def share(processes: Processes, places: Places, outcome: Outcome, expected: Answers) -> None:
    """Starts both engines on one budget, plays the bursts, stops the engines."""
    servers = {model: start_elastic(processes, places, model) for model in MODELS}
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(server.wait_until_ready(session) for server in servers.values()))
        processes.note_shared_memory()
        sampler = Sampler(places.budget)
        outcome.capacity = sampler.capacity
        say(f"both serve; mapped while idle: {sum(sampler.now()) // MIB} MiB")
        for burst, wanted in zip(bursts(), expected, strict=True):
            outcome.played.append(await play(burst, wanted, servers, sampler, session))
        preempted = [f"{m} {await servers[m].preemptions(session)}" for m in MODELS]
        say(f"requests that had to start again for want of memory: {', '.join(preempted)}")
    say("stopping both with SIGTERM")
    outcome.stopped = {model: server.stop() for model, server in servers.items()}
    sampler.stop()
    wait_for(lambda: not processes.living(), 10)
    outcome.left_behind = [
        *(f"process {p.pid}" for p in processes.living()),
        *(str(path) for path in processes.left_shared_memory()),
        *(f"{member} in the budget's record" for member in sampler.members()),
        *(str(path) for path in places.budget.glob("instances/*")),
    ]


def demo(processes: Processes, places: Places, upstream: Path) -> Outcome:
    outcome = Outcome()
    say(f"making two small models, {', '.join(MODELS)}, and a budget of {CAPACITY // MIB} MiB")
    make_models(places)
    save(bursts(), places.workload)
    say("unpatched upstream computes the answers; beside it, a fixed half is tried")
    reference = start_upstream(processes, places, upstream)
    outcome.refusal = refusal_of(start_static_half(processes, places, MODELS[-1]))
    say(f"a fixed {HALF // MIB} MiB each: {outcome.refusal or 'NOT refused'}")
    expected = finish_upstream(reference, places)
    say(f"answers known; starting two `vllm serve` that share {CAPACITY // MIB} MiB")
    asyncio.run(share(processes, places, outcome, expected))
    return outcome


def main() -> int:
    places = Places(Path(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    processes = Processes(places.root, environment(places))
    try:
        outcome = demo(processes, places, Path(sys.argv[2]))
    except Failed as failure:
        say(f"FAILED: {failure}")
        return 1
    finally:
        processes.end()
    print("\n" + "\n".join(outcome.lines()), flush=True)
    for problem in (problems := outcome.problems()):
        print(f"demo: FAILED: {problem}", flush=True)
    print("FAILED" if problems else "OK")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
