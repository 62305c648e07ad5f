"""SGLang's pools of other kinds over the host driver, stepped by hand (rig.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.usefixtures("sglang_variables")]

TOKENS = 64  # of a page

# Type of the numbers, that of the tensors, bytes of a token.
FP8 = {"float8_e4m3fn": 2 * 2 * 64, "float8_e5m2": 2 * 2 * 64}
# Type of the numbers of a latent cache as DeepSeek's models have it, 576 of them: rows that do not
# divide a granule.
LATENT = {"float8_e4m3fn": 2 * 576, "bfloat16": 2 * 576 * 2, "float32": 2 * 576 * 4}


def make_fp8(dtype: str) -> Any:
    import torch

    from engine_sglang.rig import plain

    return lambda slots: plain(slots, getattr(torch, dtype))


def make_latent(dtype: str) -> Any:
    import torch
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    return lambda slots: MLATokenToKVPool(
        size=slots,
        page_size=1,
        dtype=getattr(torch, dtype),
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
    )


KINDS = [("fp8", name) for name in FP8] + [("latent", name) for name in LATENT]


@pytest.fixture(params=KINDS, ids="-".join)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    from engine_sglang.rig import Rig

    kind, dtype = request.param
    pool, token = (make_fp8, FP8) if kind == "fp8" else (make_latent, LATENT)
    page = TOKENS * token[dtype]
    made = Rig(
        tmp_path / "budget",
        pool=pool(dtype),
        page_size=page,
        capacity=40 * page,
        reserve_pages=0,
    )
    yield made
    driver = made.backend._memory.driver
    made.close()
    assert driver.held_bytes() == 0


def test_tensors_are_what_the_pool_asks_for(rig: Any) -> None:
    import torch

    pool = rig.pool
    wanted = torch.uint8 if pool.dtype.itemsize == 1 else pool.dtype
    assert {tensor.dtype for tensor in rig.tensors()} == {wanted}
    assert pool.get_key_buffer(1).dtype == pool.dtype
    assert pool.get_value_buffer(0).dtype == pool.dtype
    rig.tensors()[-1][0] = 1  # padding


def test_memory_comes_with_use_is_zero_and_goes(rig: Any) -> None:
    at_rest = rig.mapped()
    for _ in range(2):
        rig.step([request(190, 1)])
        taken = rig.take(190)
        (page,) = rig.stepper._pools.page_tokens
        fresh = taken[taken >= page]
        assert len(fresh) >= 190 - page
        assert not any(tensor[fresh].any() for tensor in rig.tensors())
        rig.write(taken)
        assert rig.mapped() > at_rest
        rig.allocator.free(taken)
        rig.rest()
        assert rig.mapped() == at_rest


def test_what_a_pass_writes_is_what_it_reads(rig: Any) -> None:
    import torch

    rig.step([request(190, 1)])
    taken = rig.take(190)
    pool, layer = rig.pool, type("Layer", (), {"layer_id": 1})
    key = pool.get_key_buffer(1)
    rows = torch.randn(190, *key.shape[1:])
    pool.set_kv_buffer(layer, taken, rows, rows)
    assert torch.equal(pool.get_key_buffer(1)[taken], rows.to(pool.dtype))
    value = pool.get_value_buffer(1)[taken]
    assert torch.equal(value, rows[..., : value.shape[-1]].to(pool.dtype))


def test_padding_s_slots_have_memory_before_there_is_a_page(
    tmp_path: Path, sglang_variables: None
) -> None:
    from engine_sglang.rig import PAGE, Rig, plain

    def touched(slots: int) -> Any:
        pool = plain(slots)
        for tensor in (*pool.k_buffer, *pool.v_buffer):
            assert not tensor[0].any()
            tensor[0] = 1.0  # as warm-ups in constructors do
        return pool

    for layout in ("block-major", "per-layer"):
        rig = Rig(tmp_path / "budget", pool=touched, layout=layout)
        assert rig.mapped() == rig.backend._memory.driver.held_bytes() == PAGE
        assert not any(tensor[0].any() for tensor in rig.tensors())
        rig.close()


def request(prompt: int, answer: int) -> Any:
    from engine_sglang.rig import request

    return request(prompt, answer)
