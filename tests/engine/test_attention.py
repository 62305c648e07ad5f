"""Attention backends that cannot use the cache as it is laid out are refused by name.

The table is upstream's own classes; which of them a layer uses is chosen on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from engine.worker_rig import Make, make
from kvcached_core.engines.vllm.attention import check_attention

pytestmark = [pytest.mark.engine]
__all__ = ["make"]  # a fixture

BACKENDS = {
    "FLASH_ATTN": "flash_attn.FlashAttentionBackend",
    "TRITON_ATTN": "triton_attn.TritonAttentionBackend",
    "FLASHINFER": "flashinfer.FlashInferBackend",
    "FLEX_ATTENTION": "flex_attention.FlexAttentionBackend",
    "CPU_ATTN": "cpu_attn.CPUAttentionBackend",
    "ROCM_ATTN": "rocm_attn.RocmAttentionBackend",
}


class Flashinfer:
    """As upstream's class answers on a GPU; its module needs that library."""

    get_name = staticmethod(lambda: "FLASHINFER")
    indexes_kv_by_block_stride = staticmethod(lambda: True)
    get_supported_kernel_block_sizes = staticmethod(lambda: [16, 32, 64])


def upstreams(name: str) -> Any:
    module, cls = BACKENDS[name].split(".")
    try:
        return getattr(import_module(f"vllm.v1.attention.backends.{module}"), cls)
    except ImportError:
        assert name == "FLASHINFER"
        return Flashinfer


def check(name: str, *, layout: str = "block-major", block_size: int = 16) -> None:
    backend = upstreams(name)
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=32, dtype=torch.float32
    )
    with set_current_vllm_config(VllmConfig()):
        spec = replace(spec, indexes_kv_by_block_stride=backend.indexes_kv_by_block_stride())
    layer = SimpleNamespace(get_attn_backend=lambda: backend)
    config: Any = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={"layer0": layer})
    )
    check_attention(config, {"layer0": spec}, layout == "block-major")


@pytest.mark.parametrize("layout", ["block-major", "per-layer"])
@pytest.mark.parametrize(
    ("name", "block_size"),
    [
        ("FLASH_ATTN", 16),
        ("FLASH_ATTN", 48),
        ("TRITON_ATTN", 16),
        ("TRITON_ATTN", 128),
        ("FLASHINFER", 16),
        ("FLASHINFER", 64),
        ("CPU_ATTN", 32),
    ],
)
def test_served(name: str, block_size: int, layout: str) -> None:
    check(name, block_size=block_size, layout=layout)


@pytest.mark.parametrize("layout", ["block-major", "per-layer"])
def test_flex_is_refused_by_name(layout: str) -> None:
    with set_current_vllm_config(VllmConfig()):  # it says so, and is wrong
        assert upstreams("FLEX_ATTENTION").indexes_kv_by_block_stride()
    with pytest.raises(ValueError, match=r"FLEX_ATTENTION \(layer layer0\).*--attention-backend"):
        check("FLEX_ATTENTION", layout=layout)


@pytest.mark.parametrize("block_size", [48, 128])
def test_blocks_that_would_be_split_need_the_other_layout(block_size: int) -> None:
    with pytest.raises(ValueError, match=r"FLASHINFER .* 16, 32, 64 .*--block-size.*per-layer"):
        check("FLASHINFER", block_size=block_size)
    check("FLASHINFER", block_size=block_size, layout="per-layer")


def test_a_backend_that_ignores_strides_needs_the_other_layout() -> None:
    with pytest.raises(ValueError, match=r"ROCM_ATTN .* by their stride.*per-layer"):
        check("ROCM_ATTN")


def test_it_is_asked_when_the_worker_counts(make: Make) -> None:
    worker = make(layout="block-major")
    flex = upstreams("FLEX_ATTENTION")
    layers = worker.vllm_config.compilation_config.static_forward_context
    layers["layer1"] = SimpleNamespace(get_attn_backend=lambda: flex)
    with pytest.raises(ValueError, match=r"FLEX_ATTENTION \(layer layer1\)"):
        worker.adjust()


def test_other_state_is_not_judged_here(make: Make) -> None:
    worker = make(layout="block-major")
    spec: Any = MambaSpec(block_size=16, shapes=((64,),), dtypes=(torch.float32,))
    check_attention(worker.vllm_config, {"ssm": spec}, block_major=True)
