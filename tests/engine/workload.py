"""Two hundred greedy requests with shared prefixes, longer than a step's token budget."""

from __future__ import annotations

import random

VOCABULARY = 256  # byte tokens of the tiny model, after its four special ones
FIRST_TOKEN = 4
STOP_TOKENS = range(FIRST_TOKEN, FIRST_TOKEN + VOCABULARY, 10)  # end requests of `hasty`


def prompts(count: int = 200, seed: int = 7) -> list[list[int]]:
    """Token ids. Two in three start with one of six prefixes; lengths are 3 to 420 tokens."""
    draw = random.Random(seed)
    prefixes = [_tokens(draw, draw.randrange(40, 260)) for _ in range(6)]
    result = []
    for _ in range(count):
        head = draw.choice(prefixes) if draw.random() < 2 / 3 else []
        result.append(head + _tokens(draw, draw.randrange(3, 160)))
    return result


def output_lengths(count: int = 200, seed: int = 11) -> list[int]:
    """Tokens to generate for each request, 4 to 48."""
    draw = random.Random(seed)
    return [draw.randrange(4, 49) for _ in range(count)]


def until_stop(tokens: list[int]) -> list[int]:
    """The part of an answer up to the first of STOP_TOKENS, which belongs to it."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in STOP_TOKENS), None)
    return tokens[:end]


def blocks_at_once(running: int, block_size: int) -> int:
    """Blocks that the first so many requests fill if all run at once and share their prefixes."""
    shared, own = set(), 0
    for prompt, answer in zip(prompts(running), output_lengths(running), strict=True):
        whole = len(prompt) // block_size
        shared.update(tuple(prompt[: block_size * (i + 1)]) for i in range(whole))
        own += -(-(len(prompt) + answer) // block_size) - whole
    return len(shared) + own


def _tokens(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(FIRST_TOKEN, FIRST_TOKEN + VOCABULARY) for _ in range(length)]
