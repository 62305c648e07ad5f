"""The sizes of the demo: pairs of engines, each on a budget whose half would not do for one."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20

# Greedy answers are compared token by token, so everything computes in float32, where the order
# of a batch does not change which token is the most likely one.
BYTES_PER_VALUE = 4
LAYERS, HIDDEN, HEADS, HEAD_DIM = 4, 128, 8, 128
BLOCK_TOKENS = 32
TOKEN_BYTES = 2 * LAYERS * HEADS * HEAD_DIM * BYTES_PER_VALUE
BLOCK_BYTES = TOKEN_BYTES * BLOCK_TOKENS  # 1 MiB

CAPACITY = 256 * MIB
HALF = CAPACITY // 2
PAGE_BYTES = 2 * MIB
FLOOR = CAPACITY // 5
# One request of this length needs 60 % of the budget: more than a fixed half could ever give.
MAX_MODEL_LEN = CAPACITY * 6 // 10 // BLOCK_BYTES * BLOCK_TOKENS
# A burst's requests fill these blocks together: 57 % of the budget.
BURST_BLOCKS = CAPACITY * 57 // 100 // BLOCK_BYTES


@dataclass(frozen=True)
class Model:
    name: str
    seed: int
    letters: bool = False
    """Whether its text has a letter for every token: SGLang's server tells no token ids."""


MODELS = (Model("A", 1), Model("B", 2), Model("C", 3, letters=True))


@dataclass(frozen=True)
class Engine:
    name: str
    kind: str  # "vllm" or "sglang"
    model: str

    @property
    def end_status(self) -> int:
        """Of its server after SIGTERM. SGLang's, once all is done, kills itself."""
        return 0 if self.kind == "vllm" else -signal.SIGKILL


@dataclass(frozen=True)
class Pair:
    """Two engines on a budget of their own."""

    name: str
    engines: tuple[Engine, Engine]
    rounds: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(engine.name for engine in self.engines)

    @property
    def device(self) -> str:
        """The key of the budget's record; the budget is called as the pair."""
        return f"host:{self.name}"


SAME = Pair("demo", (Engine("A", "vllm", "A"), Engine("B", "vllm", "B")), rounds=3)
MIXED = Pair("mixed", (Engine("vLLM", "vllm", "A"), Engine("SGLang", "sglang", "C")), rounds=2)
PAIRS = (SAME, MIXED)


@dataclass(frozen=True)
class Places:
    """Where things lie in the demo's temporary folder."""

    root: Path
    venvs: Mapping[str, Path] = field(default_factory=dict)
    """Environments, by kind of engine; upstream's release lies in each, beside the fork."""

    def upstream(self, kind: str) -> Path:
        return self.venvs[kind] / "upstream"

    def program(self, kind: str, name: str) -> str:
        return str(self.venvs[kind] / "bin" / name)

    def model(self, name: str) -> Path:
        return self.root / "models" / name

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    @property
    def budget(self) -> Path:
        return self.root / "budget"

    @property
    def workload(self) -> Path:
        return self.root / "workload.json"

    def expected(self, kind: str) -> Path:
        """Where the answers of upstream of this kind go."""
        return self.root / f"expected-{kind}.json"

    @property
    def refusal(self) -> Path:
        return self.root / "refusal.txt"


def cores_of(place: int) -> str:
    """The processors that the first (0) or second (1) engine of a pair computes on, as
    VLLM_CPU_OMP_THREADS_BIND wants them.

    Its `auto` takes the same processors for every engine, whose threads then wait for each other.
    """
    mine = sorted(os.sched_getaffinity(0))
    half = max(1, len(mine) // 2)
    chosen = mine[half:] or mine if place else mine[:half]
    return ",".join(map(str, chosen))
