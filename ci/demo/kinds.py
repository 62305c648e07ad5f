"""What the kinds of engines differ in as servers: `vllm serve` and SGLang's `launch_server`."""

from __future__ import annotations

import json
import re
import socket
from typing import Any, ClassVar

import aiohttp
from arguments import SGLANG, SGLANG_ENVIRONMENT, VLLM, command_line
from processes import Processes
from scene import CAPACITY, FLOOR, PAGE_BYTES, Engine, Pair, Places, cores_of
from servers import Server
from workload import Answer

# By default vLLM kills its engine process at once, which then cannot tidy up after itself.
GRACE_SECONDS = 20


class VllmServer(Server):
    asks: ClassVar[dict[str, Any]] = {"return_token_ids": True}

    def read(self, choice: dict[str, Any]) -> Answer:
        return list(choice["token_ids"])

    async def restarts(self, session: aiohttp.ClientSession) -> int:
        async with session.get(f"{self.url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        counts = [line for line in lines if line.startswith("vllm:num_preemptions_total")]
        return int(sum(float(line.split()[-1]) for line in counts))


class SglangServer(Server):
    """It does not tell token ids here; the model's tokenizer has a letter for each (run.py)."""

    asks: ClassVar[dict[str, Any]] = {"skip_special_tokens": False}

    def read(self, choice: dict[str, Any]) -> Answer:
        return str(choice["text"])

    async def restarts(self, session: aiohttp.ClientSession) -> int:
        found = re.findall(r"#retracted_reqs: (\d+)", self.log.read_text(errors="replace"))
        return sum(map(int, found))


def start_elastic(processes: Processes, places: Places, pair: Pair, engine: Engine) -> Server:
    """An engine that maps memory of the pair's budget while it needs it."""
    config = {
        "budget": pair.name,
        "budget_dir": str(places.budget),
        "capacity": CAPACITY,
        "floor": FLOOR,
        "page_size": PAGE_BYTES,
        "name": engine.name,
    }
    port = _free_port()
    if engine.kind == "vllm":
        cls: type[Server] = VllmServer
        command = _serve_vllm(places, engine)
        environment = {"VLLM_CPU_OMP_THREADS_BIND": cores_of(pair.engines.index(engine))}
    else:
        cls, command = SglangServer, _serve_sglang(places, engine)
        # Not used; by default it would be the port + 10,000, and there may be no such port.
        environment = {**SGLANG_ENVIRONMENT, "SGLANG_GRPC_PORT": str(port - 1)}
    command += ["--served-model-name", engine.name, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--kv-storage-backend", "kvcached", "--kv-storage-config", json.dumps(config)]
    log = places.log(f"server-{pair.name}-{engine.name}")
    return cls(engine.name, log, port, processes.start(command, log, environment))


def _serve_vllm(places: Places, engine: Engine) -> list[str]:
    command = [places.program("vllm", "vllm"), "serve", str(places.model(engine.model))]
    return [*command, "--shutdown-timeout", str(GRACE_SECONDS), *command_line(VLLM)]


def _serve_sglang(places: Places, engine: Engine) -> list[str]:
    command = [places.program("sglang", "python"), "-m", "sglang.launch_server"]
    return [*command, "--model-path", str(places.model(engine.model)), *command_line(SGLANG)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
