#!/usr/bin/env python3
"""Offline throughput of static and elastic storage on one GPU, interleaved; writes JSON.

    python benchmarks/gpu/offline.py OUT.json [--runner second] [--layout per-layer]
        [--repeats 3] [--requests 512] [--set KEY=VALUE ...]

Llama-3.1-8B's shape with dummy weights (for speed only: they give nearly every prompt the same
tokens), 512 requests of 512 tokens in and 128 out, no prefix cache. Each measurement is an engine
in a process of its own, static and elastic in turn; one engine generates `--rounds` times, and its
figure is the median. The figure of a mode is the median over its engines; what static differs from
itself by is the noise. `--set` adds settings of the elastic storage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
RUNNERS = {"first": "0", "second": "1"}
DEADLINE_S = 400  # an engine that compiles needs 80 to start


def used_mib() -> int:
    """Of the whole device."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    )


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """One engine, in this process: MiB of the device, seconds, tokens a second."""
    before = used_mib()
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - only the child has an engine

    began = time.monotonic()
    llm = LLM(
        job["model"],
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=8192,
        enable_prefix_caching=False,
        seed=0,
        **job["engine"],
    )
    found: dict[str, Any] = {"start_s": round(time.monotonic() - began, 1)}
    found["mib"] = {"before": before, "idle": used_mib()}
    draw = random.Random(0)
    sampling = SamplingParams(
        max_tokens=job["output"], temperature=0, ignore_eos=True, detokenize=False
    )

    def generate(requests: int) -> float:
        prompts = [
            {"prompt_token_ids": [draw.randrange(1000, 100000) for _ in range(job["prompt"])]}
            for _ in range(requests)
        ]
        start = time.monotonic()
        llm.generate(prompts, sampling, use_tqdm=False)
        return requests * (job["prompt"] + job["output"]) / (time.monotonic() - start)

    generate(8)
    found["tokens_per_s"] = [round(generate(job["requests"])) for _ in range(job["rounds"])]
    found["mib"]["end"] = used_mib()
    time.sleep(2)
    found["mib"]["2 s later"] = used_mib()
    return found


def engine_of(mode: str, arguments: argparse.Namespace) -> dict[str, Any]:
    if mode == "static":
        return {"gpu_memory_utilization": arguments.utilization}
    layout = {"layout": arguments.layout} if arguments.layout else {}
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    return {
        "gpu_memory_utilization": arguments.utilization,
        "kv_storage_backend": "kvcached",
        "kv_storage_config": {**layout, **settings},
    }


def run(mode: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    given, made = folder / "job.json", folder / "result.json"
    made.unlink(missing_ok=True)
    job = {key: getattr(arguments, key) for key in ("requests", "prompt", "output", "rounds")}
    given.write_text(
        json.dumps({"model": str(folder), "engine": engine_of(mode, arguments), **job})
    )
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "VLLM_USE_V2_MODEL_RUNNER": RUNNERS[arguments.runner],
    }
    log = arguments.log / f"{arguments.runner}-{mode}.log"
    with log.open("a") as out:
        subprocess.run(
            [sys.executable, __file__, "--child", str(given), str(made)],
            env=environment,
            stdout=out,
            stderr=out,
            timeout=DEADLINE_S,
            check=False,
        )
    if not made.exists():
        raise SystemExit(f"{mode} failed:\n" + "\n".join(log.read_text().splitlines()[-60:]))
    return {"mode": mode, **json.loads(made.read_text())}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    medians = {
        mode: [statistics.median(r["tokens_per_s"]) for r in runs if r["mode"] == mode]
        for mode in ("static", "elastic")
    }
    static, elastic = (statistics.median(values) for values in medians.values())
    noise = max(abs(value / static - 1) for value in medians["static"])
    return {
        "medians": medians,
        "elastic/static": round(elastic / static, 4),
        "noise": round(noise, 4),
    }


def versions() -> dict[str, str]:
    wanted = ("kvcached", "vllm", "torch", "triton")
    found = {d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"]}
    return {name: found[name] for name in sorted(found) if name.startswith(wanted)}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        job = json.loads(Path(sys.argv[2]).read_text())
        Path(sys.argv[3]).write_text(json.dumps(measure(job)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--runner", choices=sorted(RUNNERS), default="second")
    parser.add_argument("--layout", default="")
    parser.add_argument("--repeats", type=int, default=3, help="engines a mode")
    parser.add_argument("--rounds", type=int, default=2, help="generations an engine")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--utilization", type=float, default=0.5)
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(SHAPE))
    runs = []
    for _ in range(arguments.repeats):
        for mode in ("static", "elastic"):
            runs.append(run(mode, arguments, folder))
            print(json.dumps(runs[-1]), flush=True)
    result = {
        "command": sys.argv,
        "versions": versions(),
        "summary": summary(runs),
        "runs": runs,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print("RESULT", json.dumps(result["summary"]), flush=True)


if __name__ == "__main__":
    main()
