"""What the series changes where only a GPU goes: upstream's own functions, called without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_storage import kv_allocation_scope
from vllm.v1.worker.gpu.attn_utils import _allocate_kv_cache
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker as GPUWorker

from engine.worker_rig import CPU, LAYERS, Make, make

pytestmark = [pytest.mark.engine]
__all__ = ["make"]  # a fixture


@pytest.mark.parametrize(("layout", "arenas"), [("per-layer", LAYERS), ("block-major", 1)])
def test_the_second_runners_tensors_come_from_the_backend(
    make: Make, layout: str, arenas: int
) -> None:
    worker = make(layout=layout)
    worker.adjust()
    worker.make_plan()
    with kv_allocation_scope(worker.storage, worker.config):
        ours = _allocate_kv_cache(worker.config, {}, CPU)
    bases = {arena.base for arena in worker.storage._arenas}
    assert {tensor.data_ptr() for tensor in ours.values()} == bases and len(bases) == arenas
    native = _allocate_kv_cache(worker.config, {}, CPU)
    assert bases.isdisjoint(tensor.data_ptr() for tensor in native.values())


def test_dummy_rows_name_the_null_block_only() -> None:
    tables: Any = object.__new__(BlockTables)
    tables.input_block_tables = [torch.full((4, 3), 7), torch.full((4, 2), 9)]
    dummy = tables.get_dummy_block_tables(2)
    for table, whole in zip(dummy, tables.input_block_tables, strict=True):
        assert table.data_ptr() == whole.data_ptr() and table.shape == (2, whole.shape[1])
        assert not table.any() and bool((whole[2:] > 0).all())


@pytest.mark.parametrize(("backend", "left"), [("static", 0), ("kvcached", 7)])
def test_waking_a_quantized_cache_writes_no_memory_of_ours(backend: str, left: int) -> None:
    cache = torch.full((4,), 7, dtype=torch.int8)
    runner: Any = SimpleNamespace(
        cache_config=SimpleNamespace(cache_dtype="fp8", kv_storage_backend=backend),
        kv_caches=[cache],
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    GPUModelRunner.init_fp8_kv_scales(runner)
    assert set(cache.tolist()) == {left}


class Sleeper:
    """A GPU worker's sleep and wake, with what they call written down in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: list[int], elastic: bool) -> None:
        self.calls: list[str] = []
        told = iter(free)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda: self.calls.append("sync"))
        monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda: (next(told), 100))

        def note(name: str) -> Any:
            return lambda *given: self.calls.append(f"{name} {given}")

        pools = SimpleNamespace(suspend=note("pools sleep"), resume=note("pools wake"))
        self.worker: Any = SimpleNamespace(
            kv_storage=SimpleNamespace(suspend=note("kv sleep"), resume=note("kv wake")),
            kv_backend=SimpleNamespace(preallocates=not elastic),
            _get_sleep_mode_backend=lambda: pools,
            _sleep_saved_buffers={},
            _sleep_rebuild_draft_metadata_buffers=False,
            model_runner=SimpleNamespace(post_kv_cache_wake_up=lambda: self.calls.append("ready")),
        )


def test_kv_memory_goes_behind_the_devices_work_and_is_asked_back_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeper = Sleeper(monkeypatch, [10, 30], elastic=True)
    GPUWorker.sleep(sleeper.worker, 1)
    GPUWorker.wake_up(sleeper.worker, None)
    assert sleeper.calls == [
        *("sync", "kv sleep (1,)", "pools sleep (1,)", "sync"),
        *("kv wake (None,)", "pools wake (None,)", "ready"),
    ]


def test_a_neighbour_that_grows_while_the_worker_falls_asleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    GPUWorker.sleep(Sleeper(monkeypatch, [30, 10], elastic=True).worker, 1)
    with pytest.raises(AssertionError, match="Memory usage increased"):
        GPUWorker.sleep(Sleeper(monkeypatch, [30, 10], elastic=False).worker, 1)


def test_a_refused_floor_leaves_the_pools_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch, [10, 30], elastic=True)

    def refuse(tags: Any) -> None:
        raise RuntimeError("its floor cannot be had")

    sleeper.worker.kv_storage.resume = refuse
    with pytest.raises(RuntimeError, match="floor"):
        GPUWorker.wake_up(sleeper.worker, None)
    assert sleeper.calls == []


@pytest.mark.parametrize(
    ("output", "ends"), [(None, 0), ("pooled", 1)], ids=["samples later", "nothing to sample"]
)
def test_a_step_ends_where_nothing_is_sampled(
    monkeypatch: pytest.MonkeyPatch, output: str | None, ends: int
) -> None:
    from contextlib import nullcontext

    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT
    from vllm.v1.worker import gpu_worker

    calls: list[str] = []
    answer = EMPTY_MODEL_RUNNER_OUTPUT if output else None
    runner = SimpleNamespace(execute_model=lambda *given: calls.append("model") or answer)
    worker: Any = SimpleNamespace(
        kv_storage=SimpleNamespace(
            begin_step=lambda output: calls.append("begin"), end_step=lambda: calls.append("end")
        ),
        _pp_send_work=[],
        vllm_config=SimpleNamespace(
            compilation_config=SimpleNamespace(pass_config=SimpleNamespace(enable_sp=False)),
            parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        ),
        use_v2_model_runner=False,
        model_runner=runner,
        annotate_profile=lambda output: nullcontext(),
    )
    first = SimpleNamespace(is_first_rank=True)
    monkeypatch.setattr(gpu_worker, "get_pp_group", lambda: first)
    GPUWorker.execute_model(worker, SimpleNamespace(total_num_scheduled_tokens=1))
    assert calls == ["begin", "model", *["end"] * ends]
