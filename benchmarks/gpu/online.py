#!/usr/bin/env python3
"""Latency of several servers on one GPU whose peaks come one after the other; writes JSON.

    python benchmarks/gpu/online.py OUT.json --mode static [--gpu 0] [-- SERVER ARGUMENTS]
    python benchmarks/gpu/online.py OUT.json --mode elastic [--gpu 1] [--set KEY=VALUE ...]
    python benchmarks/gpu/online.py --compare STATIC.json ELASTIC.json [and further runs]

One `vllm serve` a model, Llama-3.1-8B's shape with a small vocabulary and dummy weights (for speed
only), 256 tokens in and 256 out. The rate of each model's requests rises to `--peak` a second
within `--up` seconds and falls as long; model i begins i times `--offset` seconds later. static:
each server has `--kv` of KV cache; elastic: together they have as many times that as there are
models, as the capacity of one budget. Everything else is the same in both, the requests too.

Besides OUT.json, OUT.requests.json tells of each request when it was due and how long it took. To
compare in the same minutes, run static with `--gpu 0` and elastic with `--gpu 1` of one host at
once, then the other way round, and give all to `--compare`.

`--cpu`: a tiny model on the CPU, to try the program.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compare import compare
from machine import MIB, Watch, ask_gpu, describe, gpu_used_mib, machine_used_mib, spread
from offline import SHAPE
from offline_forks import FORKS, RUNNERS
from offline_machine import versions
from servers import Servers

HERE = Path(__file__).resolve().parent
TOKENS = 256  # ids that prompts are drawn from
SMALL_VOCABULARY = {"vocab_size": 259, "bos_token_id": 256, "eos_token_id": 257}
LARGE: dict[str, Any] = {**SHAPE, **SMALL_VOCABULARY}
TINY: dict[str, Any] = {
    **LARGE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
BUDGET = "online"
ON_GPU = ["--gpu-memory-utilization", "0.2"]  # static's guard at start: room for all of them
ON_CPU = ["--enforce-eager", "--dtype", "float32", "--max-num-batched-tokens", "512"]
CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second one is a GPU's
}


def size(text: str) -> int:
    """Bytes of, say, 7.7GiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", MIB)):
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)


def setting(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def server_arguments(a: argparse.Namespace, model: int, folder: Path) -> list[str]:
    words = [str(folder), "--served-model-name", "m", "--load-format", "dummy"]
    words += ["--skip-tokenizer-init", "--stream-interval", str(a.stream_interval)]
    words += ["--max-model-len", str(a.max_model_len), *(ON_CPU if a.cpu else ON_GPU)]
    if a.mode == "static":
        words += ["--kv-cache-memory-bytes", str(size(a.kv))]
    else:
        settings: dict[str, Any] = {
            "budget": BUDGET,
            "budget_dir": str(folder / "budget"),
            "capacity": a.models * size(a.kv),
            "name": f"model-{model}",
            **{key: setting(value) for key, value in (pair.split("=", 1) for pair in a.set)},
        }
        words += ["--kv-storage-backend", "kvcached"]
        words += ["--kv-storage-config", json.dumps(settings)]
    return words + a.server


def environment(a: argparse.Namespace) -> dict[str, str]:
    found = {**os.environ, **FORKS["vllm"].environment(a.runner)}
    if a.cpu:
        return {**found, **CPU_ENVIRONMENT}
    return {**found, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(a.gpu)}


class Cache:
    """MiB that each model's cache has of the budget, by the budget's own record."""

    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        from kvcached_core.budget import open_device_budget  # noqa: PLC0415 - static needs none

        key = f"host:{BUDGET}" if a.cpu else f"cuda:{ask_gpu(a.gpu, 'uuid')}"
        self._budget = open_device_budget(folder / "budget", key)
        self._names = [f"model-{i}" for i in range(a.models)]

    def __call__(self) -> list[int]:
        created = {row.instance: row.created for row in self._budget.rows()}
        return [created.get(name, 0) // MIB for name in self._names]

    def capacity(self) -> int:
        return int(self._budget.capacity()) // MIB


def drive(a: argparse.Namespace, servers: Servers, folder: Path) -> list[list[dict[str, Any]]]:
    """All clients, a process a model; the requests of each model."""
    start = time.monotonic() + a.lead
    clients, made = [], []
    for i, url in enumerate(servers.urls):
        job = {
            "url": url,
            "start": start + i * a.offset,
            "seed": i,
            "tokens": TOKENS,
            **{key: getattr(a, key) for key in ("peak", "up", "prompt", "output", "warm")},
        }
        given = folder / f"job-{i}.json"
        given.write_text(json.dumps(job))
        made.append(folder / f"result-{i}.json")
        command = [sys.executable, str(HERE / "load.py"), str(given), str(made[-1])]
        clients.append(subprocess.Popen(command))
    if any([client.wait() for client in clients]):
        raise SystemExit("a client failed; its reason is above")
    return [json.loads(path.read_text()) for path in made]


def measure(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    lists = [server_arguments(a, i, folder) for i in range(a.models)]
    logs = [a.log / f"{a.out.stem}-{i}.log" for i in range(a.models)]
    began = time.monotonic()
    with Servers(lists, a.port, environment(a), logs) as servers:
        servers.wait(a.boot)
        boot = time.monotonic() - began

        def used() -> int:
            return machine_used_mib() if a.cpu else gpu_used_mib(a.gpu)

        idle, before = used(), servers.counters()
        memory = Watch(used)
        cache = Cache(a, folder) if a.mode == "elastic" else None
        caches = Watch(cache) if cache else None
        requests = drive(a, servers, folder)
        time.sleep(2)
        seen, after = memory.stop(), servers.counters()
        found = {"boot_s": round(boot, 1), **latencies(a, requests)}
        found["preemptions"] = [
            int(late[PREEMPTIONS] - early[PREEMPTIONS])
            for early, late in zip(before, after, strict=True)
        ]
        found["device_mib"] = {"idle": idle, "peak": max(seen), "each_second": seen}
        if cache and caches:
            held = caches.stop()
            found["cache_mib"] = {
                "capacity": cache.capacity(),
                "peak": max(map(sum, held)),
                "each_second": held,
            }
    a.out.with_suffix(".requests.json").write_text(json.dumps(requests))
    return found


PREEMPTIONS = "vllm:num_preemptions_total"


def latencies(a: argparse.Namespace, requests: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Milliseconds over the requests that did not fail."""

    def of(some: list[dict[str, Any]]) -> dict[str, Any]:
        good = [r for r in some if not r["error"]]
        if not good:
            return {}
        steps = a.output - 1
        return {
            "ttft_ms": spread([1e3 * r["first"] for r in good]),
            "tpot_ms": spread([1e3 * (r["last"] - r["first"]) / steps for r in good], 3),
        }

    everything = [r for model in requests for r in model]
    errors = [r["error"] for r in everything if r["error"]]
    return {
        "requests": len(everything),
        "failed": len(errors),
        "errors": errors[:5],
        **of(everything),
        "client_late_ms": spread([1e3 * r["late"] for r in everything]),
        "models": [of(model) for model in requests],
    }


def arguments() -> argparse.Namespace:
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("out", type=Path)
    p.add_argument("--mode", choices=("static", "elastic"), required=True)
    p.add_argument("--gpu", type=int, default=0, help="as nvidia-smi counts")
    p.add_argument("--cpu", action="store_true", help="a tiny model, to try the program")
    p.add_argument("--runner", choices=sorted(RUNNERS), default="second")
    p.add_argument("--models", type=int, default=3)
    p.add_argument("--kv", default="7.7GiB", help="KV cache a model")
    p.add_argument("--peak", type=float, default=48, help="requests a second")
    p.add_argument("--up", type=float, default=14, help="seconds from none to the peak")
    p.add_argument("--offset", type=float, default=28, help="seconds between two models' begins")
    p.add_argument("--prompt", type=int, default=256, help="tokens")
    p.add_argument("--output", type=int, default=256, help="tokens")
    p.add_argument("--warm", type=int, default=8, help="requests before, that do not count")
    p.add_argument("--lead", type=float, default=12, help="seconds for these")
    p.add_argument("--stream-interval", type=int, default=32, help="tokens a piece")
    p.add_argument("--max-model-len", type=int, default=8192)
    p.add_argument("--port", type=int, default=None, help="the first one's; 9000 + 100 * gpu")
    p.add_argument("--boot", type=float, default=300, help="seconds to wait for all servers")
    p.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()), help="a folder")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    a = p.parse_args(given[:cut])
    a.server = given[cut + 1 :]
    a.port = 9000 + 100 * a.gpu if a.port is None else a.port
    return a


def main() -> None:
    if sys.argv[1:2] == ["--compare"]:
        sys.exit(compare([Path(path) for path in sys.argv[2:]]))
    a = arguments()
    folder = Path(tempfile.mkdtemp(prefix="online-"))
    try:
        (folder / "config.json").write_text(json.dumps(TINY if a.cpu else LARGE))
        result = {
            "mode": a.mode,
            "command": sys.argv,
            "machine": describe(None if a.cpu else a.gpu),
            "versions": versions(),
            **measure(a, folder),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    a.out.write_text(json.dumps(result) + "\n")
    brief = ("mode", "boot_s", "requests", "failed", "ttft_ms", "tpot_ms", "preemptions")
    print("RESULT", json.dumps({key: result.get(key) for key in brief}), flush=True)


if __name__ == "__main__":
    main()
