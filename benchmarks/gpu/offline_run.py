"""One run: engines that live at the same time and generate one after another, round by round."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_engines import EngineFailed, EngineProcess, stop
from offline_machine import Gpu
from offline_report import Record, summary
from offline_spec import Spec

COUNTERS_S = 60


@dataclass(frozen=True)
class Plan:
    """What to do. Seconds; lengths in tokens."""

    model: Path
    vocabulary: int
    child: list[str]
    counted: tuple[str, ...]
    """Modes whose engines tell counters."""
    log: Path
    alone: int
    """How many engines start one after another, before all others start together."""
    rounds: int
    requests: int
    prompt: int
    output: int
    settle_s: float
    start_s: float
    round_s: float
    grace_s: float


class Run:
    """An engine that fails is killed and left out from then on; the end of its log is printed."""

    def __init__(self, plan: Plan, specs: list[Spec], gpu: Gpu, out: Path, head: Record) -> None:
        """`head` opens the result, which `out` holds after every round."""
        self._plan, self._specs, self._gpu, self._out = plan, specs, gpu, out
        self._head = head
        self._alive: dict[str, EngineProcess] = {}
        self._idle: int | None = None
        self._complete = False
        self.records: dict[str, Record] = {spec.name: _record(spec) for spec in specs}

    def measure(self) -> None:
        """Everything. What was found so far stays in the result if it is interrupted."""
        self._start()
        for name in list(self._alive):
            self._ask(name, "generate", requests=8, seed=0)
        self._look_idle()
        for number in range(1, self._plan.rounds + 1):
            for name in list(self._alive):
                self._round(number, name)
                self.write()
        self._complete = True

    def close(self) -> None:
        """Ends every engine, and writes the result."""
        # A start that was interrupted may be under way, so all are told to end at once.
        stop(self._alive.values(), self._plan.grace_s, at_once=not self._complete)
        self._alive.clear()
        self.write()

    def write(self) -> None:
        found = {"complete": self._complete, "summary": summary(self.records)}
        self._out.write_text(
            json.dumps({**self._head, **found, "engines": self.records}, indent=1) + "\n"
        )

    # --- start ---

    def _start(self) -> None:
        alone = self._specs[: self._plan.alone]
        together = self._specs[self._plan.alone :]
        if len(together) == 1:
            alone, together = self._specs, []
        for spec in alone:
            before = self._gpu.used_mib()
            self._spawn(spec)
            self._await(spec, {"before": before}, [])
        for spec in together:
            self._spawn(spec)
        for spec in together:
            self._await(spec, {}, [other.name for other in together if other is not spec])

    def _spawn(self, spec: Spec) -> None:
        engine = EngineProcess(spec, self._plan.child, self._plan.log / f"{spec.name}.log")
        self._alive[spec.name] = engine
        try:
            engine.tell(
                "start",
                model=str(self._plan.model),
                vocabulary=self._plan.vocabulary,
                engine=spec.engine,
                spawned=engine.spawned,
            )
        except EngineFailed as failure:
            self._drop(spec.name, str(failure))

    def _await(self, spec: Spec, mib: dict[str, int | None], beside: list[str]) -> None:
        if spec.name not in self._alive:
            return
        engine, record = self._alive[spec.name], self.records[spec.name]
        try:
            found = engine.answer(engine.began + self._plan.start_s, "start")
        except EngineFailed as failure:
            self._drop(spec.name, str(failure))
            return
        if not beside:
            mib["after"] = self._gpu.used_mib()
        record["start"] = {**found, "started_beside": beside, "mib": mib}
        print(json.dumps({"engine": spec.name, "start": record["start"]}), flush=True)

    # --- rounds ---

    def _round(self, number: int, name: str) -> None:
        found = self._ask(name, "generate", requests=self._plan.requests, seed=number)
        if found is None:
            return
        mib = {"idle": self._idle, "end": self._gpu.used_mib()}
        time.sleep(self._plan.settle_s)
        mib["settled"] = self._gpu.used_mib()
        record = self.records[name]
        made: Record = {"round": number, **found, "mib": mib}
        record["rounds"].append(made)
        if record["mode"] in self._plan.counted:
            made.update(self._counters(name))
        print(json.dumps({"engine": name, **made}), flush=True)

    def _counters(self, name: str) -> Record:
        """Asked when the round's memory is back; `change` is what this round added."""
        found = self._ask(name, "counters")
        if found is None:
            return {"counters": None, "why": self.records[name]["failed"]}
        asked = [self.records[name]["counters_at_idle"], *self.records[name]["rounds"][:-1]]
        earlier = asked[-1]["counters"]
        if found["counters"] and earlier:
            found["change"] = {key: n - earlier[key] for key, n in found["counters"].items()}
        return found

    def _ask(self, name: str, do: str, **command: Any) -> Record | None:
        """The answer, or None if the engine failed, and is dropped."""
        seconds: float = COUNTERS_S
        if do == "generate":
            command |= {"prompt": self._plan.prompt, "output": self._plan.output}
            seconds = self._plan.round_s
        try:
            return self._alive[name].ask(seconds, do, **command)
        except EngineFailed as failure:
            self._drop(name, str(failure))
            self._idle = self._gpu.used_mib()
            return None

    def _look_idle(self) -> None:
        """What is in use before the first round, and the counters there."""
        for name in list(self._alive):
            if self.records[name]["mode"] in self._plan.counted:
                self.records[name]["counters_at_idle"] = self._ask(name, "counters")
        time.sleep(self._plan.settle_s)
        self._idle = self._gpu.used_mib()
        self._head["idle_mib"] = self._idle
        by_session = self._gpu.process_mib()
        for name, engine in self._alive.items():
            mine = by_session.get(engine.group)
            why = {} if mine else {"why": self._gpu.why or "nvidia-smi names no process of it"}
            self.records[name]["idle_mib"] = {"of_process": mine, **why}

    def _drop(self, name: str, why: str) -> None:
        engine = self._alive[name]
        self.records[name]["failed"] = why
        print(f"{name} failed: {why}; the end of {engine.log}:\n{engine.tail()}", flush=True)
        stop([engine], self._plan.grace_s, at_once=True)
        del self._alive[name]  # not before: `close` ends it if this is interrupted


def _record(spec: Spec) -> Record:
    return {
        "mode": spec.mode,
        "runner": spec.runner,
        "engine": spec.engine,
        "environment": spec.environment,
        "failed": None,
        "start": None,
        "idle_mib": None,
        "counters_at_idle": None,
        "rounds": [],
    }
