"""What the series calls, and what the scheduler makes of memory that is not there (scarce.py)."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.processes import Run
from engine_sglang.processes import SglangEngines

pytestmark = [pytest.mark.sglang]


@pytest.fixture(scope="module")
def scarce(engines: SglangEngines, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The workload while up to three quarters of all slots come to be without memory."""
    site = tmp_path_factory.mktemp("site")
    info = site / "scarce-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scarce\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.kv_storage_backends]\nscarce = engine_sglang.scarce:Scarce\n"
    )
    path = os.pathsep.join([engines.environment()["PYTHONPATH"], str(site)])
    engine = {"kv_storage_backend": "scarce"}
    job = {"engine": engine, "environment": {"PYTHONPATH": path}, "sleeps": True}
    return engines.run("scarce", job)


@pytest.mark.slow
@pytest.mark.conformance("interface")
def test_tokens_are_upstreams_whatever_memory_there_is(scarce: Run, upstream: Run) -> None:
    assert scarce["tokens"] == upstream["tokens"]
    assert scarce["tokens_awake"] == upstream["tokens"]


@pytest.mark.slow
@pytest.mark.conformance("interface")
def test_running_requests_gave_way_and_chunks_waited(scarce: Run, upstream: Run) -> None:
    assert upstream["retractions"] == 0 and scarce["retractions"] > 0
    assert upstream["inside"]["parked"] == 0 and scarce["inside"]["parked"] > 0
    assert scarce["inside"]["backend"]["least"] < 0


@pytest.mark.slow
@pytest.mark.conformance("interface")
def test_the_order_of_calls(scarce: Run) -> None:
    """That of the interface's documentation."""
    assert scarce["inside"]["backend"]["order"][:9] == [
        "kv_budget_gb",
        "new_buffer",
        "token_allocator_cls",
        "max_request_tokens",
        "bind",
        "begin_step",
        "begin_step",
        "on_forward",
        "release",
    ]
    calls = scarce["inside"]["backend"]["calls"]
    once = ("kv_budget_gb", "token_allocator_cls", "bind", "release", "resume")
    assert {name: calls[name] for name in once} == dict.fromkeys(once, 1)
    assert calls["on_forward"] == scarce["inside"]["forward_ct"] <= calls["begin_step"]
    assert "wakeup_fd" not in calls  # nobody sleeps


@pytest.mark.slow
@pytest.mark.conformance("interface")
def test_a_step_sees_what_wants_memory(scarce: Run) -> None:
    backend = scarce["inside"]["backend"]
    assert backend["most_waiting"] > 150
    assert backend["most_running"] > 8
    assert backend["chunked"] > 0


@pytest.mark.slow
@pytest.mark.conformance("interface")
def test_buffers_and_sizes_are_told(scarce: Run, upstream: Run) -> None:
    backend = scarce["inside"]["backend"]
    shapes = [shape for shape, _, _ in upstream["inside"]["tensors"]]
    assert backend["buffers"] == [[shape, 1] for shape in shapes]
    assert 0 < backend["budget"]["available_gb"] <= backend["budget"]["before_load_gb"] + 1
    assert scarce["inside"]["max_req_len"] == upstream["inside"]["max_req_len"] - 7


@pytest.mark.usefixtures("sglang_variables")
def test_an_idle_scheduler_wakes_for_a_descriptor() -> None:
    from sglang.srt.managers.scheduler_components.idle_sleeper import IdleSleeper

    sleeper = IdleSleeper(sockets=[])
    poll, found = sleeper.poller.poll, []
    sleeper.poller.poll = lambda timeout: found.append(poll())  # without end
    sleeper.watch(None)
    readable, writable = os.pipe()
    sleeper.watch(readable)
    threading.Timer(0.1, os.write, (writable, b"x")).start()
    sleeper.maybe_sleep()
    assert [fd for fd, _ in found[0]] == [readable]
    os.close(readable)
    os.close(writable)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, sglang_variables: None) -> Any:
    """The process's own backend, put back behind the test."""
    from sglang.srt.mem_cache import kv_storage

    monkeypatch.setattr(kv_storage, "_active", kv_storage._static)
    return kv_storage


def test_a_process_has_one_backend(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    closed: list[bool] = []

    class Counted(backend.KVStorageBackend):  # type: ignore[misc]
        def __init__(self, server_args: Any, *, device: str, gpu_id: int) -> None:
            made.append(gpu_id)

        def close(self, graceful: bool) -> None:
            closed.append(graceful)

    monkeypatch.setattr(backend, "_load", lambda name: Counted)
    args = SimpleNamespace(kv_storage_backend="counted")
    assert type(backend.get_kv_storage()) is backend.KVStorageBackend
    backend.init_kv_storage(args, "cpu", 3)
    first = backend.get_kv_storage()
    backend.init_kv_storage(args, "cpu", 3)  # a draft worker
    assert backend.get_kv_storage() is first and made == [3]
    backend.close_kv_storage(graceful=True)
    assert closed == [True] and type(backend.get_kv_storage()) is backend.KVStorageBackend
    backend.close_kv_storage(graceful=False)
    assert closed == [True]


# Pools of other shapes than the tiny model's, by name: arguments, buffers and tokens a row.
def pools() -> dict[str, Any]:
    import torch
    from sglang.srt.mem_cache import memory_pool

    base = {"size": 128, "page_size": 64, "dtype": torch.float32, "layer_num": 2, "device": "cpu"}
    base |= {"enable_memory_saver": False}
    heads = {"head_num": 2, "head_dim": 8}
    latent = {"kv_lora_rank": 16, "qk_rope_head_dim": 8}
    index = {"index_head_dim": 128, "kv_cache_dim": 24}
    rows = [192, 1, 24]
    return {
        "hnd": (memory_pool.MHATokenToKVPool, base | heads, [([3, 2, 64, 8], 64)] * 4),
        "page-major": (
            memory_pool.PageMajorMHATokenToKVPool,
            base | heads,
            [([3, 64 * 2 * 2 * 2 * 8 * 4], 64)],
        ),
        "mla": (memory_pool.MLATokenToKVPool, base | latent, [(rows, 1)] * 2),
        "dsa": (
            memory_pool.DSATokenToKVPool,
            base | latent | index,
            [(rows, 1)] * 2 + [([3, 64 * 132], 64)] * 2,
        ),
        "k-only": (memory_pool.MHATokenToKOnlyPool, base | heads, [([192, 2, 8], 1)] * 2),
    }


@pytest.mark.parametrize("name", ["hnd", "page-major", "mla", "dsa", "k-only"])
def test_each_elastic_pool_takes_its_tensors_from_the_backend(
    name: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[int], int]] = []
    made: list[Any] = []

    class Asked(backend.KVStorageBackend):  # type: ignore[misc]
        def new_buffer(self, owner: Any, shape: Any, **given: Any) -> Any:
            asked.append((list(shape), given.get("tokens_per_row", 1)))
            made.append(super().new_buffer(owner, shape, **given))
            return made[-1]

    monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1" if name == "hnd" else "0")
    cls, arguments, wanted = pools()[name]
    plain = cls(**arguments)
    monkeypatch.setattr(backend, "_active", object.__new__(Asked))
    pool = cls(**arguments)
    assert asked == wanted
    held = {t.untyped_storage().data_ptr() for t in tensors(pool)}
    assert held == {t.untyped_storage().data_ptr() for t in made}
    assert list(map(layout, tensors(pool))) == list(map(layout, tensors(plain)))
    assert all(not t.any() for t in made)


def tensors(pool: Any) -> list[Any]:
    names = ("k_buffer", "v_buffer", "kv_buffer", "index_k_with_scale_buffer")
    return [tensor for name in names for tensor in getattr(pool, name, [])]


def layout(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.storage_offset()


def test_the_allocator_of_sliding_windows_is_made_of_the_backend_s(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    from engine_sglang.scarce import ScarceAllocator

    class Windows(backend.KVStorageBackend):  # type: ignore[misc]
        def token_allocator_cls(self) -> Any:
            return ScarceAllocator

    monkeypatch.setattr(backend, "_active", object.__new__(Windows))
    pool = SWAKVPool(64, 32, 1, torch.float32, 2, 8, [0], [1], "cpu", enable_kv_cache_copy=False)
    allocator = SWATokenToKVPoolAllocator(64, 32, 1, torch.float32, "cpu", pool, False)
    assert type(allocator.full_attn_allocator) is ScarceAllocator
    assert type(allocator.swa_attn_allocator) is ScarceAllocator
    assert allocator.full_attn_allocator.get_kvcache() is pool.full_kv_pool
    allocator.full_attn_allocator.withheld, allocator.swa_attn_allocator.withheld = 10, 5
    assert (allocator.unbacked_size(), allocator.swa_unbacked_size()) == (10, 5)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (54, 27)


@pytest.mark.parametrize(("available", "evicted"), [(3, [8]), (-5, [13]), (8, [])])
def test_eviction_counts_what_must_be_given_back(
    available: int, evicted: list[int], sglang_variables: None
) -> None:
    from sglang.srt.mem_cache.common import evict_from_tree_cache

    asked: list[int] = []
    tree = SimpleNamespace(
        is_chunk_cache=lambda: False,
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: available),
        evict=lambda parameters: asked.append(parameters.num_tokens),
    )
    evict_from_tree_cache(tree, 8)
    assert asked == evicted


def test_the_series_is_where_the_tests_run() -> None:
    from sglang.srt.mem_cache import kv_storage

    assert "site-packages" in Path(kv_storage.__file__).parts
