"""The block pool's free queue, ours against upstream's, through the same calls on the same kind of
blocks: a cycle takes n blocks and gives them back. Cached: as prefixes; dead: as content nobody
wants again. Groups of one n compare the two.

    pytest benchmarks --benchmark-json=docs/benchmarks/...   (see docs/benchmarks.md)
"""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from kvcached_core.engines.vllm.queue import LedgerQueue
from kvcached_core.pool import Ledger

NUM_BLOCKS = 65_536
PER_PAGE = 16
SIZES = [1, 128, 16_384]


def ours() -> LedgerQueue:
    ledger = Ledger(NUM_BLOCKS, PER_PAGE)
    ledger.grown(ledger.plan_growth(ledger.num_pages()))
    return LedgerQueue([KVCacheBlock(i) for i in range(NUM_BLOCKS)], ledger)


def upstream() -> FreeKVCacheBlockQueue:
    queue = FreeKVCacheBlockQueue([KVCacheBlock(i) for i in range(NUM_BLOCKS)])
    queue.popleft()  # the null block
    return queue


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("queue", [ours, upstream])
@pytest.mark.parametrize("way", ["cached", "dead"])
def test_pop_and_give_back(benchmark: Any, queue: Any, way: str, n: int) -> None:
    benchmark.group = f"queue, {way}, n={n}"
    subject = queue()
    pop, push = subject.popleft_n, subject.append_n if way == "cached" else subject.prepend_n
    free = subject.num_free_blocks

    def cycle() -> None:
        push(pop(n))

    benchmark(cycle)
    assert subject.num_free_blocks == free


@pytest.mark.parametrize("queue", [ours, upstream])
def test_prefix_hit(benchmark: Any, queue: Any) -> None:
    benchmark.group = "queue, one hit and back"
    subject = queue()
    blocks = subject.popleft_n(1024)
    subject.append_n(blocks)
    block = blocks[500]

    def cycle() -> None:
        subject.remove(block)
        subject.append_n([block])

    benchmark(cycle)
    assert subject.num_free_blocks == NUM_BLOCKS - 1
