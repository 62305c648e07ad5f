"""The sizes of the demo: two models, one budget, and what neither model could do in half of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20

# Greedy answers are compared token by token, so everything computes in float32, where the order
# of a batch does not change which token is the most likely one.
BYTES_PER_VALUE = 4
LAYERS, HIDDEN, HEADS, HEAD_DIM = 4, 128, 8, 128
BLOCK_TOKENS = 32
BLOCK_BYTES = 2 * LAYERS * HEADS * HEAD_DIM * BYTES_PER_VALUE * BLOCK_TOKENS  # 1 MiB

CAPACITY = 256 * MIB
HALF = CAPACITY // 2
PAGE_BYTES = 2 * MIB
FLOOR = CAPACITY // 5
# One request of this length needs 60 % of the budget: more than a fixed half could ever give.
MAX_MODEL_LEN = CAPACITY * 6 // 10 // BLOCK_BYTES * BLOCK_TOKENS
# A burst's requests fill these blocks together: 57 % of the budget.
BURST_BLOCKS = CAPACITY * 57 // 100 // BLOCK_BYTES

MODELS = ("A", "B")
SEEDS = {"A": 1, "B": 2}
BUDGET = "demo"
DEVICE = f"host:{BUDGET}"


@dataclass(frozen=True)
class Places:
    """Where things lie in the demo's temporary folder."""

    root: Path

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

    @property
    def refusal(self) -> Path:
        return self.root / "refusal.txt"

    @property
    def expected(self) -> Path:
        return self.root / "expected.json"


def engine_arguments() -> dict[str, str | int | bool]:
    """Arguments of both engines and of upstream's: all but the storage."""
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "block_size": BLOCK_TOKENS,
        "enable_prefix_caching": True,
        "seed": 0,
    }


def command_line() -> list[str]:
    """The same for `vllm serve`."""
    words = []
    for key, value in engine_arguments().items():
        option = "--" + key.replace("_", "-")
        words += [option] if value is True else [option, str(value)]
    return words


def cores_of(model: str) -> str:
    """The processors that a model computes on, as VLLM_CPU_OMP_THREADS_BIND wants them.

    Its `auto` takes the same processors for every engine, whose threads then wait for each other.
    """
    mine = sorted(os.sched_getaffinity(0))
    half = max(1, len(mine) // 2)
    chosen = mine[:half] if model == MODELS[0] else mine[half:] or mine
    return ",".join(map(str, chosen))
