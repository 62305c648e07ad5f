"""The requests: bursts in turn, each larger than half of the budget, and one moment for both.

And their answers, as upstream's processes write them for the demo's.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

from scene import BLOCK_TOKENS, BURST_BLOCKS, PAIRS, Pair

REQUESTS = 8
# All of a burst's prompts are read, 512 tokens a step, before its first answer is complete.
ANSWER_TOKENS = 40
SMALL_REQUESTS, SMALL_BLOCKS = 4, 4

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty")


@dataclass(frozen=True)
class Request:
    engine: str
    prompt: str
    max_tokens: int = ANSWER_TOKENS


@dataclass(frozen=True)
class Burst:
    label: str
    requests: tuple[Request, ...]


Work = dict[str, list[Burst]]  # by the pair's name
Answer = list[int] | str  # token ids; or a text with a letter for every token
# Pair, burst in it, request in it.
Key = tuple[str, int, int]
Answers = dict[Key, Answer]


def workload() -> Work:
    return {pair.name: bursts(pair) for pair in PAIRS}


def bursts(pair: Pair, seed: int = 0) -> list[Burst]:
    """Both in turn, with a moment when both are busy before the last round."""
    draw = random.Random(seed)
    found: list[Burst] = []
    for round_number in range(1, pair.rounds + 1):
        if round_number == pair.rounds:
            small = [
                _request(draw, name, SMALL_BLOCKS)
                for name in pair.names
                for _ in range(SMALL_REQUESTS)
            ]
            found.append(Burst("both", tuple(small)))
        for name in pair.names:
            blocks = _parts(draw, BURST_BLOCKS, REQUESTS)
            requests = tuple(_request(draw, name, n) for n in blocks)
            found.append(Burst(f"{name} {round_number}", requests))
    return found


def by_model(work: Work, kind: str) -> dict[str, list[tuple[Key, Request]]]:
    """What is asked of the engines of this kind, by the model that must answer."""
    found: dict[str, list[tuple[Key, Request]]] = {}
    for pair in PAIRS:
        models = {engine.name: engine.model for engine in pair.engines if engine.kind == kind}
        for i, burst in enumerate(work[pair.name]):
            for j, request in enumerate(burst.requests):
                if request.engine in models:
                    asked = found.setdefault(models[request.engine], [])
                    asked.append(((pair.name, i, j), request))
    return found


def _parts(draw: random.Random, total: int, count: int) -> list[int]:
    """`count` uneven numbers that sum to `total`."""
    parts = [total // count + draw.randint(-4, 4) for _ in range(count - 1)]
    return [*parts, total - sum(parts)]


def _request(draw: random.Random, engine: str, blocks: int) -> Request:
    """A request that holds `blocks` blocks when its answer is complete; a letter is a token."""
    length = blocks * BLOCK_TOKENS - ANSWER_TOKENS - draw.randrange(8)
    text = ""
    while len(text) < length:
        text += f"{draw.choice(_WORDS)} {draw.randrange(1000)} "
    return Request(engine, text[:length])


def save(work: Work, path: Path) -> None:
    found = {name: [asdict(burst) for burst in bursts] for name, bursts in work.items()}
    path.write_text(json.dumps(found))


def load(path: Path) -> Work:
    return {
        name: [
            Burst(burst["label"], tuple(Request(**request) for request in burst["requests"]))
            for burst in bursts
        ]
        for name, bursts in json.loads(path.read_text()).items()
    }


def save_answers(answers: Answers, path: Path) -> None:
    path.write_text(json.dumps([[*key, answer] for key, answer in answers.items()]))


def load_answers(path: Path) -> Answers:
    return {(pair, i, j): answer for pair, i, j, answer in json.loads(path.read_text())}
