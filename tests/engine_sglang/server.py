"""One engine as users start it, SGLang's server, and what a client sees of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from engine import workload
from engine.processes import DEADLINE_S, Started
from engine_sglang import observe
from engine_sglang.processes import SglangEngines
from engine_sglang.runner import ENGINE
from support.command_line import options
from support.ports import free_port


@dataclass
class Server:
    started: Started
    port: int
    _threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)

    def wait_until_ready(self) -> None:
        self.started.wait_until(self._is_ready, "it serves")

    def ask(self, numbers: Sequence[int], length: int | None = None) -> Future[Any]:
        """The workload's requests of these numbers, as they are answered; all of them `length`
        tokens long, if given."""
        prompts, lengths = workload.prompts(), workload.output_lengths()
        body = {
            "input_ids": [prompts[n] for n in numbers],
            "sampling_params": [
                {"temperature": 0, "max_new_tokens": length or lengths[n], "ignore_eos": True}
                for n in numbers
            ],
        }
        return self._threads.submit(self.post, "/generate", body)

    def tokens(self, numbers: Sequence[int]) -> list[list[int]]:
        return tokens(self.ask(numbers).result())

    def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url(path), data, head)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def status(self, path: str) -> int:
        """Of the answer to a request without a body."""
        try:
            with urllib.request.urlopen(self._url(path), timeout=DEADLINE_S) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    def inside(self) -> dict[str, Any]:
        """What the observer in its scheduler saw."""
        with urllib.request.urlopen(self._url("/get_server_info"), timeout=DEADLINE_S) as reply:
            return dict(json.loads(reply.read())["internal_states"][0]["observed"])

    def signal(self, number: signal.Signals) -> None:
        """To its main process only."""
        os.kill(self.started.process.pid, number)

    def end(self) -> None:
        self.started.kill()
        self._threads.shutdown()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(self._url("/health")) as reply:
            return bool(reply.status == 200)
        return False


def tokens(answers: list[Any]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def serve(
    engines: SglangEngines,
    name: str,
    storage: dict[str, Any],
    *,
    deep_sleep: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
    **engine: Any,
) -> Server:
    """Starts a server of the tests' model with the runner's arguments and these; the caller ends
    it. With `deep_sleep` an idle scheduler sleeps until it is woken, however long."""
    port = free_port()
    command = [sys.executable, str(engines.scripts / "serve.py"), "--model-path"]
    command += [str(engines.model), "--host", "127.0.0.1", "--port", str(port)]
    command += options({**ENGINE, **engine})
    command += ["--kv-storage-backend", "kvcached"]
    command += ["--kv-storage-config", json.dumps(storage)]
    variables = {
        **engines.environment(),
        **environment,
        "SGLANG_GRPC_PORT": str(port - 1),  # not used; port + 10,000 by default, which may be none
        observe.GATE: "0",
        observe.MUTANT: "0",
        observe.DEEP_SLEEP: str(int(deep_sleep)),
    }
    return Server(engines.launch(name, command, variables), port)
