#!/usr/bin/env python3
"""Offline throughput of several engines that live on one GPU at the same time; writes JSON.

    python benchmarks/gpu/offline.py OUT.json --engine static=static \\
        --engine bm32=kvcached,page_size=32MiB \\
        --engine pl=kvcached,layout=per-layer,page_size=64MiB \\
        --engine peer=peer,contiguous=false

Llama-3.1-8B's shape with dummy weights (for speed only: they give nearly every prompt the same
tokens), 512 requests of 512 tokens in and 128 out, no prefix cache. The engines generate one after
another, round by round, so that whatever drifts, drifts for all. The figure of an engine is the
median of its rounds; the noise is how far the first engine's own rounds are from theirs.

The engines are vLLM's, or with `--fork sglang` SGLang's. One is NAME=MODE,key=value,... or
NAME={"mode": MODE, "key": value, ...}. Modes: `static`; `kvcached` with the settings of the elastic
storage; `peer`, upstream's kvcached (of vLLM's runners only the first), which must be installed
beside the fork. See offline_spec.py for the keys of every mode.

On two GPUs, each engine on both (the memory in use that is told is the first one's):

    python benchmarks/gpu/offline.py OUT.json --static-cache 21GiB \\
        --engine static=static,tp=2 --engine bm32=kvcached,page_size=32MiB,tp=2

All must fit: on 140 GiB static and one elastic engine with 512 requests (128 KiB a token), or
four engines with `--requests 256 --static-cache 21GiB`. An elastic engine that has too little
memory is slower, and shows it in `refused`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from offline_forks import FORKS, RUNNERS
from offline_machine import Gpu, versions
from offline_report import summary
from offline_run import Plan, Run
from offline_spec import Common, Spec, parse_spec

from kvcached_core.config import parse_size

SHAPE = {
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


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("out", type=Path)
    add("--engine", action="append", required=True, metavar="NAME=SPEC", help="the first: baseline")
    add("--fork", choices=sorted(FORKS), default="vllm")
    add("--runner", choices=sorted(RUNNERS), default="second", help="vLLM's")
    add("--rounds", type=int, default=5)
    add("--requests", type=int, default=512)
    add("--prompt", type=int, default=512, help="tokens")
    add("--output", type=int, default=128, help="tokens")
    add("--static-cache", default="41GiB", help="KV cache of static; the others' limit, addresses")
    add("--utilization", type=float, default=0.3, help="share that must be free at static's start")
    add("--env", action="append", default=[], metavar="K=V", help="for all engines")
    add("--engine-args", type=json.loads, default={}, metavar="JSON", help="of LLM or Engine, all")
    add("--model", type=Path, help="a folder; default: one of Llama-3.1-8B's shape")
    add("--log", type=Path, default=Path(tempfile.gettempdir()), help="folder of the engines' logs")
    start = made.add_mutually_exclusive_group()
    start.add_argument("--warm", action="store_true", help="first alone: it fills compile caches")
    start.add_argument("--serial", action="store_true", help="each starts alone")
    add("--settle", type=float, default=2, help="seconds from a round's end to the next one")
    add("--start-deadline", type=float, default=400, help="seconds")
    add("--round-deadline", type=float, default=120, help="seconds")
    add("--grace", type=float, default=10, help="seconds from SIGTERM to SIGKILL")
    add("--child-command", help="what obeys as offline_child.py does")
    return made


def specs_of(arguments: argparse.Namespace) -> list[Spec]:
    """Raises ValueError."""
    common = Common(
        arguments.fork,
        arguments.runner,
        parse_size(arguments.static_cache, "--static-cache"),
        arguments.utilization,
        dict(pair.split("=", 1) for pair in arguments.env),
        arguments.engine_args,
    )
    specs = [parse_spec(text, common) for text in arguments.engine]
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("--engine: two engines have the same name")
    return specs


def child_of(arguments: argparse.Namespace) -> list[str]:
    if arguments.child_command:
        return shlex.split(arguments.child_command)
    return [sys.executable, str(FORKS[arguments.fork].child)]


def plan_of(arguments: argparse.Namespace, model: Path, engines: int) -> Plan:
    return Plan(
        model=model,
        vocabulary=json.loads((model / "config.json").read_text())["vocab_size"],
        child=child_of(arguments),
        counted=FORKS[arguments.fork].counted,
        log=arguments.log,
        alone=engines if arguments.serial else int(arguments.warm),
        rounds=arguments.rounds,
        requests=arguments.requests,
        prompt=arguments.prompt,
        output=arguments.output,
        settle_s=arguments.settle,
        start_s=arguments.start_deadline,
        round_s=arguments.round_deadline,
        grace_s=arguments.grace,
    )


def interrupted(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)  # the engines are being ended
    sys.exit(128 + number)


def main() -> int:
    arguments = parser().parse_args()
    try:
        specs = specs_of(arguments)
    except ValueError as error:
        parser().error(str(error))
    arguments.log.mkdir(parents=True, exist_ok=True)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, interrupted)
    gpu = Gpu()
    head = {"command": sys.argv, "machine": gpu.about(), "versions": versions()}
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or Path(folder)
        if not arguments.model:
            (model / "config.json").write_text(json.dumps(SHAPE))
        run = Run(plan_of(arguments, model, len(specs)), specs, gpu, arguments.out, head)
        try:
            run.measure()
        finally:
            run.close()
            print("RESULT", json.dumps(summary(run.records)), flush=True)
    return 1 if any(record["failed"] for record in run.records.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
