"""No attention backend touches an address without memory, whatever stale entries its tables hold.

Pages come and go under requests that are preempted and aborted and prefixes that are evicted, with
CUDA graphs padded to their captured sizes. Addresses without memory fault, so an engine that ends
well has touched none: nothing is mapped in their place. Half precision, as FlashAttention needs;
its answers depend on the batch, so they are not compared.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.processes import Engines
from gpu.load import ON_GPU, block_bytes, job, tight

pytestmark = [pytest.mark.gpu]

COUNT = 500
NONE_KEPT = {"prefix_bound": "0B", "reserve_pages": 0}


@pytest.mark.parametrize("layout", ["block-major", "per-layer"])
@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TRITON_ATTN", "FLASHINFER"])
def test_no_backend_touches_a_hole(
    engines: Engines, note: Callable[..., None], backend: str, layout: str
) -> None:
    given = job("second", COUNT, dtype="bfloat16", attention_backend=backend)
    storage = {**tight(block_bytes(dtype_size=2)), **NONE_KEPT, "layout": layout}
    run = engines.elastic(f"holes-{backend}-{layout}", storage, **given)
    metrics = run["metrics"]
    note(f"holes, {backend}, {layout}", answers=len(run["tokens"]), **metrics)
    assert len(run["tokens"]) == COUNT
    assert metrics["vllm:num_preemptions"] > 0


def test_a_rank_in_a_process_of_its_own(engines: Engines, note: Callable[..., None]) -> None:
    """Here scheduler and rank share a process by default."""
    given = job("second", 300, distributed_executor_backend="mp")
    alone = engines.elastic("own-process", tight(), **given)
    given = job("second", 300)
    shared = engines.elastic("one-process", tight(), **given)
    different = sum(a != b for a, b in zip(alone["tokens"], shared["tokens"], strict=True))
    note("a rank in a process of its own", requests=300, different=different)
    assert ON_GPU["async_scheduling"] and different <= 3
