"""How much memory a step needs, read off the requests that the scheduler shows.

Two needs differ. What a step *takes* is tokens of prompts, a chunk of them at most, and a block for
each request that decodes. What the scheduler wants to *see* before it admits a request is more: its
whole prompt and answer, and what running requests are expected to write yet, as far as it reckons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True)
class Demand:
    """Tokens."""

    decode: int = 0
    """Without these a running request gives way."""
    step: int = 0
    """All that the step may take, `decode` included."""
    first: int = 0
    """What it wants to see free or evictable before the next request in line is admitted."""
    admit: int = 0
    """The same for all that the step may admit."""
    arriving: int = 0
    """Requests that the step may admit."""


def demand_of(
    waiting: Sequence[Any], chunked: Any, running: Any, arrived: int, limits: Limits
) -> Demand:
    """`running` is a ScheduleBatch; `arrived`, how many requests may run beside those in it."""
    block = limits.block_tokens
    # Taking a block more than is needed for each is what allocating asks for, to be sure.
    decode = (len(running.reqs) + arrived) * block
    line = list(_in_line(waiting, chunked, len(running.reqs), limits))
    if not line:
        return Demand(decode=decode, step=decode, first=decode, admit=decode)
    cut = limits.chunk
    take = first = admit = 0
    expected = _expected(running.reqs, limits)
    for prompt, answer in line:
        take += (prompt if cut is None else min(prompt, cut - min(take, cut))) + block
        admit += prompt + answer + 2 * block
        first = first or admit
    return Demand(
        decode=decode,
        step=decode + take,
        first=decode + expected + first,
        admit=decode + expected + admit,
        arriving=len(line),
    )


def _in_line(waiting: Sequence[Any], chunked: Any, running: int, limits: Limits) -> Any:
    """Prompt and answer, in tokens, of the requests that the step may admit."""
    room = limits.prefill if limits.chunk is None else limits.chunk
    places = limits.running - running
    if chunked is not None:
        prompt, answer = _left(chunked, limits)
        prompt -= len(chunked.prefix_indices)
        yield max(0, prompt), answer
        room -= prompt
        places -= 1
    for request in waiting:
        if room <= 0 or places <= 0:
            return
        prompt, answer = _left(request, limits)
        yield prompt, answer
        room -= prompt
        places -= 1


def _left(request: Any, limits: Limits) -> tuple[int, int]:
    written = len(request.output_ids)
    answer = min(max(0, request.sampling_params.max_new_tokens - written), limits.answer)
    return len(request.origin_input_ids) + written, answer


def _expected(requests: Sequence[Any], limits: Limits) -> int:
    left = sum(_left(request, limits)[1] for request in requests)
    return int(left * limits.expected) + 1
