"""SGLang's devices, chosen in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from kvcached_core.budget import Budget, open_record
from kvcached_core.config import Settings
from kvcached_core.instance.device import Device, HostDevice
from kvcached_core.vmm import CudaDriver, Driver


class RankDevice(Device):
    """A rank's device, whose process is the scheduler's too."""

    def plan_workspace(self, size: int) -> None:
        """What SGLang leaves free of the cache for activations and graphs, by its own options."""


class CpuDevice(HostDevice, RankDevice):
    """Memory of the machine."""


class CudaDevice(RankDevice):
    """An NVIDIA GPU; one budget a GPU, whatever name the settings give it. A rank's process has a
    context there anyway, so the driver is made at once and asked."""

    tensor_type = "cuda"
    page_size = 32 << 20

    def __init__(self, settings: Settings, index: int) -> None:
        self._settings = settings
        self._index = index
        self._driver = CudaDriver(index)
        self.key = self._driver.device_key()
        self.granularity = self._driver.granularity()
        self._workspace = self._reserved = 0

    def open_budget(self, directory: Path) -> Budget:
        total = int(torch.cuda.get_device_properties(self._index).total_memory)
        settings = self._settings
        return open_record(directory, self.key, total, settings.capacity, settings.headroom)

    def make_driver(self) -> Driver:
        return self._driver

    def streams(self) -> list[int]:
        return [int(torch.cuda.current_stream(self._index).cuda_stream)]

    def plan_workspace(self, size: int) -> None:
        self._workspace = size
        self._reserved = int(torch.cuda.memory_reserved(self._index))

    def workspace_bytes(self) -> int:
        return self._workspace

    def workspace_left(self) -> int:
        taken = int(torch.cuda.memory_reserved(self._index)) - self._reserved
        return max(0, self._workspace - max(0, taken))


# By SGLang's name of the kind; each is called with the settings and the index.
_DEVICES: dict[str, Callable[[Settings, int], RankDevice]] = {
    "cpu": lambda settings, index: CpuDevice(settings),
    "cuda": CudaDevice,
}


def is_served(device_type: str) -> bool:
    """Whether there is a driver for devices of this kind."""
    return device_type in _DEVICES


def device_of(device_type: str, settings: Settings, index: int) -> RankDevice:
    """Device `index` of a kind that `is_served`."""
    return _DEVICES[device_type](settings, index)
