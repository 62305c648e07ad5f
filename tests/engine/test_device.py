"""Which device a rank's memory is on, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvcached_core.budget import CapacityConflict
from kvcached_core.config import parse_settings
from kvcached_core.engines.vllm import device as device_module
from kvcached_core.engines.vllm.device import device_of, is_served
from kvcached_core.instance.device import Device
from kvcached_core.vmm import HOST_GRANULARITY

pytestmark = [pytest.mark.engine]

MIB = 1 << 20


def host(**given: Any) -> Device:
    settings = parse_settings({"budget": "mine", **given}, "here")
    config: Any = SimpleNamespace(device_config=SimpleNamespace(device_type="cpu"))
    return device_of(config, settings, 0)


def test_host_memory_is_what_a_cpu_has(tmp_path: Path) -> None:
    device = host(capacity="2MiB", headroom="1MiB")
    assert (device.tensor_type, device.key) == ("cpu", "host:mine")
    budget = device.open_budget(tmp_path)
    assert (budget.capacity(), budget.headroom()) == (2 * MIB, MIB)
    driver = device.make_driver()
    assert driver.granularity() == device.granularity == HOST_GRANULARITY
    assert driver.dlpack_device() == (1, 0)


def test_to_know_a_device_opens_nothing(tmp_path: Path) -> None:
    host(budget_dir=str(tmp_path / "records"))
    assert not list(tmp_path.iterdir())


def test_a_cpus_worker_claims_nothing_beside_the_cache() -> None:
    assert host().workspace_bytes() == 0


@pytest.mark.parametrize("kind", ["xpu", "tpu"])
def test_other_kinds_are_not_served(kind: str) -> None:
    assert is_served("cpu") and is_served("cuda") and not is_served(kind)


# --- a GPU, as far as it goes without one ---

UUID = "GPU-0123"


class Driver:
    def __init__(self, index: int, key: str = f"cuda:{UUID}", granularity: int = 2 * MIB) -> None:
        self.device_key = lambda: key
        self.granularity = lambda: granularity


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU of 8 MiB, and what torch says of its memory there."""
    memory = {
        "max_memory_reserved": 5 * MIB,
        "memory_allocated": 2 * MIB,
        "memory_reserved": 2 * MIB,
    }
    platform = SimpleNamespace(
        get_device_uuid=lambda index: f"GPU-{index:04d}" if index else UUID,
        get_device_total_memory=lambda index: 8 * MIB,
        logical_device_id_to_visible_device_id=lambda index: index,
    )
    monkeypatch.setattr(device_module, "current_platform", platform)
    monkeypatch.setattr(device_module, "CudaDriver", Driver)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda i: memory["max_memory_reserved"])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda i: memory["memory_allocated"])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda i: memory["memory_reserved"])
    return memory


def cuda(rank: int = 0, replica: int | None = None, **given: Any) -> Device:
    parallel = SimpleNamespace(
        data_parallel_rank_local=replica, data_parallel_index=0, world_size=2
    )
    config: Any = SimpleNamespace(
        device_config=SimpleNamespace(device_type="cuda"), parallel_config=parallel
    )
    return device_of(config, parse_settings(given, "here"), rank)


def test_a_gpus_budget_is_keyed_by_its_uuid_and_as_large_as_it(
    gpu: dict[str, int], tmp_path: Path
) -> None:
    device = cuda(headroom="1MiB")
    assert (device.tensor_type, device.key) == ("cuda", f"cuda:{UUID}")
    budget = device.open_budget(tmp_path)
    assert (budget.capacity(), budget.headroom()) == (8 * MIB, MIB)


@pytest.mark.parametrize(("rank", "replica", "index"), [(1, None, 1), (0, 1, 2), (1, 1, 3)])
def test_replicas_take_the_gpus_in_turn(
    gpu: dict[str, int], rank: int, replica: int | None, index: int
) -> None:
    assert cuda(rank, replica).key == f"cuda:GPU-{index:04d}"


def test_who_names_no_capacity_takes_the_records(gpu: dict[str, int], tmp_path: Path) -> None:
    first = cuda(capacity="4MiB").open_budget(tmp_path)
    first.join("one", 0, 4 * MIB)
    assert cuda().open_budget(tmp_path).capacity() == 4 * MIB
    with pytest.raises(CapacityConflict):
        cuda(capacity="6MiB").open_budget(tmp_path)
    with pytest.raises(CapacityConflict):
        cuda(headroom="1MiB").open_budget(tmp_path)


def test_the_peak_of_activations_is_claimed_with_room_for_graphs(gpu: dict[str, int]) -> None:
    device = cuda()
    assert device.workspace_bytes() == 3 * MIB + (1 << 30)
    assert device.workspace_left() == 3 * MIB + (1 << 30)
    gpu["memory_reserved"] = 4 * MIB
    assert device.workspace_left() == MIB + (1 << 30)
    gpu["memory_reserved"] = 1 << 31
    assert device.workspace_left() == 0
    gpu["memory_allocated"] = 6 * MIB
    assert device.workspace_bytes() == 1 << 30


@pytest.mark.parametrize("harm", [{"key": "cuda:GPU-MIG"}, {"granularity": MIB}])
def test_a_driver_of_something_else_stops_the_start(
    gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch, harm: dict[str, Any]
) -> None:
    assert isinstance(cuda().make_driver(), Driver)
    monkeypatch.setattr(device_module, "CudaDriver", lambda index: Driver(index, **harm))
    with pytest.raises(RuntimeError, match="planned was cuda:GPU-0123"):
        cuda().make_driver()


def test_the_fence_stands_on_the_current_stream(
    gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: stream)
    assert cuda().streams() == [77] and host().streams() == []
