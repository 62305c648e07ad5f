"""The requests: bursts in turn, each larger than half of the budget, and one moment for both."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

from scene import BLOCK_TOKENS, BURST_BLOCKS, MODELS

ROUNDS = 3
REQUESTS = 8
# All of a burst's prompts are read, 512 tokens a step, before its first answer is complete.
ANSWER_TOKENS = 40
SMALL_REQUESTS, SMALL_BLOCKS = 4, 4

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty")


@dataclass(frozen=True)
class Request:
    model: str
    prompt: str
    max_tokens: int = ANSWER_TOKENS


@dataclass(frozen=True)
class Burst:
    label: str
    requests: tuple[Request, ...]


def bursts(seed: int = 0) -> list[Burst]:
    """A and B in turn, with a moment when both are busy before the last round."""
    draw = random.Random(seed)
    found: list[Burst] = []
    for round_number in range(1, ROUNDS + 1):
        if round_number == ROUNDS:
            small = [_request(draw, m, SMALL_BLOCKS) for m in MODELS for _ in range(SMALL_REQUESTS)]
            found.append(Burst(" and ".join(MODELS), tuple(small)))
        for model in MODELS:
            blocks = _parts(draw, BURST_BLOCKS, REQUESTS)
            found.append(
                Burst(f"{model} {round_number}", tuple(_request(draw, model, n) for n in blocks))
            )
    return found


def _parts(draw: random.Random, total: int, count: int) -> list[int]:
    """`count` uneven numbers that sum to `total`."""
    parts = [total // count + draw.randint(-4, 4) for _ in range(count - 1)]
    return [*parts, total - sum(parts)]


def _request(draw: random.Random, model: str, blocks: int) -> Request:
    """A request that holds `blocks` blocks when its answer is complete; a letter is a token."""
    length = blocks * BLOCK_TOKENS - ANSWER_TOKENS - draw.randrange(8)
    text = ""
    while len(text) < length:
        text += f"{draw.choice(_WORDS)} {draw.randrange(1000)} "
    return Request(model, text[:length])


def save(found: list[Burst], path: Path) -> None:
    path.write_text(json.dumps([asdict(burst) for burst in found]))


def load(path: Path) -> list[Burst]:
    return [
        Burst(burst["label"], tuple(Request(**request) for request in burst["requests"]))
        for burst in json.loads(path.read_text())
    ]
