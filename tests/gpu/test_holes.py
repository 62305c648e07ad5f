"""No attention backend touches an address without memory, whatever stale entries its tables hold.

Pages come and go under requests that are preempted and aborted and prefixes that are evicted, with
CUDA graphs padded to their captured sizes. Addresses without memory fault, so an engine that ends
well has touched none: nothing is mapped in their place. Half precision, as FlashAttention needs;
its answers depend on the batch, so they are not compared.

FLASHINFER compiles its kernels at the first start, in some minutes: it needs nvcc (of the toolkit
that PyTorch was built for, with its lib64) and ninja on PATH, and keeps what it made in
FLASHINFER_WORKSPACE_BASE (default: the home directory). Versions that do not match only
FLASHINFER_DISABLE_VERSION_CHECK=1 lets through. Offline it takes its own kernels, none of
TensorRT-LLM's.
"""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from engine.processes import Engines
from gpu.compare import compare_runs
from gpu.conftest import Note
from gpu.load import ON_GPU, block_bytes, job, tight

pytestmark = [pytest.mark.gpu]

COUNT = 500
NONE_KEPT = {"prefix_bound": "0B", "reserve_pages": 0}


# The whole machine compiles: sources side by side, and the phases of each.
COMPILE = {"FLASHINFER_NVCC_THREADS": "2"}


def _has_flashinfer() -> bool:
    tools = all(shutil.which(tool) for tool in ("nvcc", "ninja"))
    return tools and importlib.util.find_spec("flashinfer") is not None


@pytest.mark.parametrize("layout", ["block-major", "per-layer"])
@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TRITON_ATTN", "FLASHINFER"])
def test_no_backend_touches_a_hole(engines: Engines, note: Note, backend: str, layout: str) -> None:
    if backend == "FLASHINFER" and not _has_flashinfer():
        pytest.skip("needs flashinfer, nvcc and ninja")
    given = job("second", COUNT, dtype="bfloat16", attention_backend=backend)
    given["environment"] |= COMPILE
    storage = {**tight(block_bytes(dtype_size=2)), **NONE_KEPT, "layout": layout}
    run = engines.elastic(f"holes-{backend}-{layout}", storage, **given)
    metrics = run["metrics"]
    note(f"holes, {backend}, {layout}", answers=len(run["tokens"]), **metrics)
    assert len(run["tokens"]) == COUNT
    assert metrics["vllm:num_preemptions"] > 0


def test_a_rank_in_a_process_of_its_own(engines: Engines, note: Note) -> None:
    """Here scheduler and rank share a process by default."""
    given = job("second", 300, distributed_executor_backend="mp")
    alone = engines.elastic("own-process", tight(), **given)
    given = job("second", 300)
    shared = engines.elastic("one-process", tight(), **given)
    found = compare_runs(shared, alone)
    note("a rank in a process of its own", **found.summary())
    assert ON_GPU["async_scheduling"] and found.requests == 300
    found.check()
