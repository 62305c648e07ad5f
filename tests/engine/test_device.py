"""Which device a rank's memory is on, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvcached_core.config import parse_settings
from kvcached_core.engines.vllm.device import Device, device_of, is_served
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


@pytest.mark.parametrize("kind", ["cuda", "xpu", "tpu"])
def test_other_kinds_are_not_served(kind: str) -> None:
    assert is_served("cpu") and not is_served(kind)
