"""How much memory a step needs, read off the requests that the scheduler shows.

Two needs differ. What a step *takes* is tokens of prompts, a chunk of them at most, and a block for
each request that decodes. What the scheduler wants to *see* before it admits a request is more: its
whole prompt and answer, and what running requests are expected to write yet, as far as it reckons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Limits:
    """Of the scheduler's, in tokens where not said otherwise."""

    block_tokens: int
    chunk: int | None
    """Of prompts in a step; None where prompts are not cut."""
    prefill: int
    """Of prompts in a step, where they are not cut; one that is longer goes alone."""
    running: int
    """Requests."""
    answer: int
    """As much of an answer as it reckons with when it admits."""
    expected: float
    """The part of what running requests may yet write that it reckons with."""
    window: int | None = None
    """Where sliding windows have a pool of their own, what it wants to see free there."""


@dataclass(frozen=True)
class Demand:
    """Tokens."""

    nothing: int = 0
    decode: int = 0
    """Without these a running request gives way."""
    step: int = 0
    """All that the step may take, `decode` included."""
    first: int = 0
    """What it wants to see free or evictable before the next request in line is admitted."""
    admit: int = 0
    """The same for all that the step may admit."""
    ahead: int = 0
    """The same with what the next step may admit too."""
    arriving: int = 0
    """Requests that the step may admit."""


Need = Literal["nothing", "decode", "step", "first", "admit", "ahead"]
"""One of a demand's numbers of tokens."""


def demand_of(
    waiting: Sequence[Any], chunked: Any, running: Any, arrived: int, limits: Limits
) -> Demand:
    """`running` is a ScheduleBatch; `arrived`, how many requests may run beside those in it."""
    line = list(_in_line(waiting, chunked, len(running.reqs), limits))
    expected = _expected(running.reqs, limits) if line else 0
    seen = [prompt + answer + 2 * limits.block_tokens for prompt, answer, _ in line]
    return _demand(line, seen, expected, len(running.reqs) + arrived, limits)


def demand_of_windows(
    waiting: Sequence[Any], chunked: Any, running: Any, arrived: int, limits: Limits
) -> Demand:
    """The same of sliding windows' own slots: what a request has there does not grow with it."""
    assert limits.window is not None
    line = list(_in_line(waiting, chunked, len(running.reqs), limits))
    cut = [prompt if limits.chunk is None else min(prompt, limits.chunk) for prompt, _, _ in line]
    seen = [max(prompt, limits.window) + 2 * limits.block_tokens for prompt in cut]
    return _demand(line, seen, 0, len(running.reqs) + arrived, limits)


def _demand(
    line: Sequence[tuple[int, int, bool]],
    seen: Sequence[int],
    expected: int,
    decoding: int,
    limits: Limits,
) -> Demand:
    """`seen`: what is to be seen free for each request in line."""
    block, cut = limits.block_tokens, limits.chunk
    # Taking a block more than is needed for each is what allocating asks for, to be sure.
    decode = decoding * block
    prompts = [prompt for prompt, _, is_now in line if is_now]
    take = 0
    for prompt in prompts:
        take += (prompt if cut is None else min(prompt, cut - min(take, cut))) + block
    base = decode + expected
    return Demand(
        decode=decode,
        step=decode + take,
        first=base + sum(seen[:1]),
        admit=base + sum(seen[: len(prompts)]),
        ahead=base + sum(seen),
        arriving=len(prompts),
    )


def _in_line(
    waiting: Sequence[Any], chunked: Any, running: int, limits: Limits
) -> Iterator[tuple[int, int, bool]]:
    """Prompt and answer, in tokens, of the requests that two steps may admit, and whether the first
    of them may."""
    room = limits.prefill if limits.chunk is None else limits.chunk
    places = limits.running - running - (chunked is not None)
    line = list(waiting[: max(0, places)])
    if chunked is not None:
        line.insert(0, chunked)
    ahead = 0  # tokens of prompts in front
    for request in line:
        if ahead >= 2 * room:
            return
        prompt, answer = _left(request, limits)
        if request is chunked:
            prompt = max(0, prompt - len(request.prefix_indices))
        yield prompt, answer, ahead < room
        ahead += prompt


def _left(request: Any, limits: Limits) -> tuple[int, int]:
    written = len(request.output_ids)
    answer = min(max(0, request.sampling_params.max_new_tokens - written), limits.answer)
    return len(request.origin_input_ids) + written, answer


def _expected(requests: Sequence[Any], limits: Limits) -> int:
    left = sum(_left(request, limits)[1] for request in requests)
    return int(left * limits.expected) + 1
