"""A rank over a real NVIDIA device: `pytest -m gpu tests/budget`, where torch is installed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_rig import PATIENCE_S, Rig, eventually, rig

from kvcached_core.vmm import CudaDriver, FaultyDriver

pytestmark = pytest.mark.gpu
PAGES = 8
WHILE = 1_000_000_000  # cycles of the device, about half a second


def device_rig(directory: Path) -> Any:
    granule = CudaDriver().granularity()
    return rig(directory, pages=PAGES, extents=(granule,))


def busy_with(torch: Any, engine: Rig, pages: list[int]) -> Any:
    """A stream that sleeps, and then writes these pages."""
    (arena,) = engine.members[0].arenas
    tensor = torch.from_dlpack(arena.tensor(0, arena.size)).view(PAGES, -1)
    torch.cuda._sleep(1)
    torch.zeros(tensor.shape[1], dtype=torch.int8, device="cuda").fill_(1)
    torch.cuda.synchronize()  # both kernels are loaded, which waits for the device
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WHILE)
        for page in pages:
            tensor[page].fill_(page)
    return stream


def test_pages_go_behind_the_kernels_that_write_them(tmp_path: Path) -> None:
    torch = importlib.import_module("torch")
    with device_rig(tmp_path) as engine:
        member = engine.join(FaultyDriver(CudaDriver()))
        engine.grow(1, 2)
        member.rank.make_ready([1, 2])
        stream = busy_with(torch, engine, [1, 2])
        member.rank.retire([1, 2], 1, [member.driver.fence(stream.cuda_stream)])
        engine.grow(3)  # not held up by the kernel
        member.rank.make_ready([3])
        assert not stream.query() and member.is_mapped(1) and member.is_mapped(2)
        assert member.rank.drain(1000 * PATIENCE_S)
        assert stream.query() and not member.is_mapped(1)
        torch.cuda.synchronize()
        engine.grow(1)
        eventually(lambda: member.is_mapped(1), "mapped again")
        member.rank.make_ready([1])
        stream = busy_with(torch, engine, [1])
        torch.cuda.synchronize()
        member.driver.check_alive()


WITHOUT = """
import tempfile
from pathlib import Path
import torch
from rank_rig import PATIENCE_S, eventually
from test_rank_real_cuda import CudaDriver, FaultyDriver, Rig, busy_with

engine = Rig(Path(tempfile.mkdtemp()), pages=8, extents=(CudaDriver().granularity(),))
member = engine.join(FaultyDriver(CudaDriver()))
engine.grow(1)
member.rank.make_ready([1])
stream = busy_with(torch, engine, [1])
member.rank.retire([1], 1)
assert member.rank.drain(1000 * PATIENCE_S) and not stream.query()
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("illegal memory access" in str(error))
engine.segment.request([2])
eventually(lambda: engine.segment.failure() != "", "the rank fails")
print("is lost" in engine.segment.failure())
"""


def test_without_a_fence_the_device_is_lost_and_the_rank_says_so() -> None:
    here = str(Path(__file__).parent)
    script = f"import sys; sys.path.insert(0, {here!r})\n{WITHOUT}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr
