"""What the elastic backend does not serve is refused at start, by the option's name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine_sglang.arguments import Asked, asked_of
from support.tiny_model import make_tiny_llama

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.usefixtures("sglang_variables"),
    pytest.mark.conformance("refusals"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
def args(model: str) -> Any:
    """Arguments that are served, as SGLang has resolved them."""
    from kvcached_core.engines.sglang import KvcachedBackend

    given = {"kv_storage_backend": "kvcached", "kv_storage_config": {"capacity": "64MiB"}}
    return asked_of(KvcachedBackend, model, grammar_backend="none", **given)


def check(args: Any) -> None:
    from kvcached_core.engines.sglang import KvcachedBackend

    KvcachedBackend.check_server_args(args)


def test_an_engine_has_one_name_for_life(args: Any) -> None:
    name = args.kv_storage_config["name"]
    assert name.startswith("sglang-")
    check(args)
    assert args.kv_storage_config == {"capacity": "64MiB", "name": name}


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--device", {"device": "npu"}),
        ("--tp-size", {"tp_size": 2, "device": "cuda"}),
        ("--pp-size", {"pp_size": 2, "device": "cuda"}),
        ("--nnodes", {"nnodes": 2}),
        ("--scheduler-recv-interval", {"tp_size": 2, "scheduler_recv_interval": 2}),
        ("--dp-size", {"dp_size": 2}),
        ("--enable-dp-attention", {"enable_dp_attention": True}),
        ("--dcp-size", {"dcp_size": 2}),
        ("--attn-cp-size", {"attn_cp_size": 2}),
        ("--speculative-algorithm", {"speculative_algorithm": "EAGLE"}),
        ("--enable-unified-memory", {"enable_unified_memory": True}),
        ("--kv-cache-dtype", {"kv_cache_dtype": "fp4_e2m1"}),
        ("--enable-hisparse", {"enable_hisparse": True}),
        ("--disaggregation-mode", {"disaggregation_mode": "decode"}),
        ("--enable-hierarchical-cache", {"enable_hierarchical_cache": True}),
        ("--enable-lmcache", {"enable_lmcache": True}),
        ("--radix-cache-backend", {"radix_cache_backend": "mine"}),
        ("--kv-canary", {"kv_canary": "log"}),
        ("--enable-memory-saver", {"enable_memory_saver": True}),
        ("--enable-pdmux", {"enable_pdmux": True}),
        ("--dllm-algorithm", {"dllm_algorithm": "LowConfidence"}),
        ("--prefill-only-disable-kv-cache", {"prefill_only_disable_kv_cache": True}),
    ],
)
def test_an_option_that_is_not_served(args: Any, option: str, given: dict[str, Any]) -> None:
    assert all(hasattr(args, name) for name in given)
    asked = Asked(args, **given)
    with pytest.raises(ValueError, match=f"kvcached does not work with .*{option}") as e:
        check(asked)
    assert "or use --kv-storage-backend=static" in str(e.value)


def test_a_pool_of_memory_from_elsewhere(args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "NVLINK")
    with pytest.raises(ValueError, match="SGLANG_MOONCAKE_CUSTOM_MEM_POOL"):
        check(args)


def test_memory_of_sglang_s_own_that_grows(args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "false")
    check(args)
    monkeypatch.setenv("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "True")
    with pytest.raises(ValueError, match="SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"):
        check(args)


def test_latent_attention_that_reads_all_of_an_fp8_cache(args: Any) -> None:
    asked = Asked(args, kv_cache_dtype="fp8_e4m3", attention_backend="flashinfer")
    check(asked)  # this model is none
    latent = SimpleNamespace(attention_arch="AttentionArch.MLA")
    asked.get_model_config = lambda: latent
    with pytest.raises(ValueError, match=r"--kv-cache-dtype=fp8 .*--attention-backend=flashinfer"):
        check(asked)


@pytest.fixture
def windowed(args: Any) -> Any:
    """Arguments for a model whose sliding windows have a pool of their own."""
    model = SimpleNamespace(
        is_hybrid_swa=True,
        full_attention_layer_ids=[1],
        sliding_window_size=64,
        attention_chunk_size=None,
        context_len=512,
        attention_arch="AttentionArch.MHA",
    )
    return Asked(args, attention_backend="triton", get_model_config=lambda: model)


def test_windows_that_attention_does_not_find(windowed: Any) -> None:
    check(windowed)
    windowed.attention_backend = "torch_native"
    with pytest.raises(ValueError, match=r"--attention-backend=torch_native .* windows") as e:
        check(windowed)
    assert "add --disable-hybrid-swa-memory" in str(e.value)
    windowed.disable_hybrid_swa_memory = True  # as plain attention
    check(windowed)


def test_windows_in_tensors_of_their_own(windowed: Any) -> None:
    windowed.kv_storage_config = {"layout": "per-layer"}
    with pytest.raises(ValueError, match="layout per-layer does not work where sliding windows"):
        check(windowed)


def test_windows_at_several_ranks(windowed: Any) -> None:
    windowed.tp_size = 2
    with pytest.raises(ValueError, match=r"does not work with --tp-size, .* windows") as e:
        check(windowed)
    assert "Add --disable-hybrid-swa-memory" in str(e.value)
    windowed.disable_hybrid_swa_memory = True
    check(windowed)


def test_several_ranks(args: Any) -> None:
    check(args)
    args.tp_size = args.pp_size = 2
    check(args)


def test_windows_and_nothing_else(windowed: Any) -> None:
    windowed.get_model_config().full_attention_layer_ids = []
    with pytest.raises(ValueError, match="that takes layers of full attention beside them"):
        check(windowed)


def test_what_a_request_holds_of_windows(windowed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcached_core.engines.sglang.attention import windows_of

    windowed.chunked_prefill_size = 256
    held = windows_of(windowed)
    assert held is not None and held.least == 64
    assert held.most == 2 * (64 + 128) + 4 * 256
    monkeypatch.setenv("SGLANG_SWA_EVICTION_INTERVAL", "1")
    held = windows_of(windowed)
    assert held is not None and held.most == 2 * (64 + 1) + 4 * 256
    windowed.chunked_prefill_size = -1  # prompts come whole
    held = windows_of(windowed)
    assert held is not None and held.most is None
    windowed.disable_hybrid_swa_memory = True
    assert windows_of(windowed) is None


@pytest.mark.parametrize("pool", ["SWAKVPool", "HybridLinearKVPool", "MHATokenToKVPoolFP4"])
def test_a_cache_that_is_more_than_attention(pool: str) -> None:
    from kvcached_core.engines.sglang.support import check_pool

    with pytest.raises(ValueError, match=f"does not serve this model's cache, a {pool}"):
        check_pool(type(pool, (), {})())


def test_a_setting_that_does_not_exist(args: Any) -> None:
    args.kv_storage_config = {"roof": 1}
    with pytest.raises(ValueError, match="--kv-storage-config: unknown key 'roof'"):
        check(args)


def room(**given: Any) -> Any:
    from kvcached_core.instance.room import Room

    return Room(**{"capacity": 64 << 20, "headroom": 0, "limit": None, **given})


def geometry(num_blocks: int = 4097, tokens: int = 1) -> Any:
    from kvcached_core.engines.sglang.geometry import Geometry

    return Geometry(tokens, num_blocks, 64, (256 * tokens,) * 8, 4096)


def test_the_longest_request_is_what_the_room_holds() -> None:
    from kvcached_core.engines.sglang.room import longest_request
    from kvcached_core.instance.room import floor_bytes

    pages = geometry()
    assert pages.page_bytes == 64 * 2048
    assert longest_request(pages, room(), 511) == 511
    small = room(limit=4 * pages.page_bytes)
    assert longest_request(pages, small, 511) == 4 * 64 - 1 - 2 - 8
    (need,) = pages.pages_of_request(511)
    assert floor_bytes(None, need, pages.page_bytes, room().limit_bytes) == 9 * pages.page_bytes
    assert floor_bytes(1, need, pages.page_bytes, room().limit_bytes) == pages.page_bytes
    for length in range(1, 512):
        assert pages.tokens_of_request(*pages.pages_of_request(length)) >= length


def test_no_request_fits() -> None:
    from kvcached_core.engines.sglang.room import longest_request

    with pytest.raises(ValueError, match=r"needs 8MiB .* there is room for 1MiB: limit is 1MiB"):
        longest_request(geometry(1025, 64), room(limit=1 << 20), 511)


@pytest.mark.parametrize(
    ("setting", "backend", "message"),
    [
        ({"allocation_log": "/tmp/log"}, "torch_native", "allocation_log is only of vLLM"),
        ({"layout": "block-major"}, "trtllm_mha", "layout block-major .*=trtllm_mha here"),
    ],
)
def test_a_setting_that_is_not_served_here(
    args: Any, setting: dict[str, str], backend: str, message: str
) -> None:
    asked = Asked(args, kv_storage_config={}, attention_backend=backend)
    check(asked)
    asked.kv_storage_config = setting
    with pytest.raises(ValueError, match=f"--kv-storage-config: {message}"):
        check(asked)
