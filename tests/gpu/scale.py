"""Sizes of the tests of several engines: a GPU's, or those of a rehearsal without one.

``KVCACHED_REHEARSAL=1 pytest -m gpu tests/gpu/test_sleep.py`` runs the same test over the CPU's
engine and a tiny model, to see that the test itself works.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from engine.device_use import gpu_key

REHEARSAL = "KVCACHED_REHEARSAL" in os.environ
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Scale:
    """Bytes, and numbers of requests of the workload."""

    page: int
    capacity: int
    """Less than an engine takes that is asked `many` requests alone."""
    few: int
    many: int
    weights: int
    """What a sleeping engine's weights leave free, at least."""
    noise: int
    """By how much a device's use may differ for reasons beside the cache."""
    sleeper: dict[str, Any] = field(default_factory=dict)
    """Arguments of an engine that sleeps."""
    environment: dict[str, str] = field(default_factory=dict)


GPU = Scale(
    page=2 * MIB,
    capacity=5 * GIB,  # at start it holds what both claim for activations and graphs too
    few=20,
    many=600,
    weights=4 * GIB,
    noise=32 * MIB,  # some segments of torch's; less than a page a cycle over 20 cycles
    sleeper={"enable_sleep_mode": True},
    environment={"VLLM_USE_V2_MODEL_RUNNER": "1"},
)
CPU = Scale(page=256 << 10, capacity=6 * MIB, few=20, many=100, weights=0, noise=0)
SCALE = CPU if REHEARSAL else GPU


def device_key(budget: str, number: int = 0) -> str:
    """Of the record that engines with that budget share; `number` counts the GPUs."""
    return f"host:{budget}" if REHEARSAL else gpu_key(number)
