"""vLLM's devices, chosen in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from vllm.platforms import current_platform

from kvcached_core.budget import Budget, open_record
from kvcached_core.config import Settings
from kvcached_core.instance.device import Device, HostDevice
from kvcached_core.vmm import CudaDriver, Driver

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class CudaDevice(Device):
    """An NVIDIA GPU. Its numbers come from NVML, so that an engine core without a rank of its own
    opens no context there; one budget a GPU, whatever name the settings give it."""

    tensor_type = "cuda"
    granularity = 2 << 20  # of every device so far; the driver is held against it
    page_size = 32 << 20

    def __init__(self, settings: Settings, logical_index: int) -> None:
        """`logical_index` as vLLM counts: among the devices that this engine was given."""
        self._settings = settings
        self._logical = logical_index
        self.key = f"cuda:{current_platform.get_device_uuid(logical_index)}"
        self._workspace = self._allocated = 0

    @property
    def _visible(self) -> int:
        """As torch and the driver count, in this process."""
        return int(current_platform.logical_device_id_to_visible_device_id(self._logical))

    def open_budget(self, directory: Path) -> Budget:
        total = int(current_platform.get_device_total_memory(self._logical))
        settings = self._settings
        return open_record(directory, self.key, total, settings.capacity, settings.headroom)

    def make_driver(self) -> Driver:
        driver = CudaDriver(self._visible)
        found = (driver.device_key(), driver.granularity())
        if found != (self.key, self.granularity):
            raise RuntimeError(
                f"CUDA device {self._visible} is {found[0]} with granules of {found[1]} bytes, "
                f"planned was {self.key} with {self.granularity}: a part of a GPU (MIG), or a kind "
                "of device that is not served yet"
            )
        return driver

    def streams(self) -> list[int]:
        # Both runners queue attention, writes, copies of blocks and drafts on the current stream;
        # their others carry tokens and logits, or join it within the step.
        return [int(torch.cuda.current_stream(self._visible).cuda_stream)]

    def workspace_bytes(self) -> int:
        index = self._visible
        self._allocated = int(torch.cuda.memory_allocated(index))
        peak = int(torch.cuda.max_memory_reserved(index))
        self._workspace = max(0, peak - self._allocated) + _GRAPHS
        return self._workspace

    def workspace_left(self) -> int:
        taken = int(torch.cuda.memory_reserved(self._visible)) - self._allocated
        return max(0, self._workspace - max(0, taken))


# Captured graphs and libraries' workspaces, which no profiling of the second runner estimates.
_GRAPHS = 1 << 30


def _cuda_index(vllm_config: VllmConfig, rank: int) -> int:
    """As vLLM's worker counts: replicas of a data-parallel engine on one machine come in turn."""
    parallel = vllm_config.parallel_config
    replica = parallel.data_parallel_rank_local
    if replica is None:
        replica = parallel.data_parallel_index
    return int(replica * parallel.world_size + rank)


# By vLLM's name of the kind; each is called with vLLM's configuration, the settings and the rank.
_DEVICES: dict[str, Callable[[VllmConfig, Settings, int], Device]] = {
    "cpu": lambda config, settings, rank: HostDevice(settings),
    "cuda": lambda config, settings, rank: CudaDevice(settings, _cuda_index(config, rank)),
}


def is_served(device_type: str) -> bool:
    """Whether there is a driver for devices of this kind."""
    return device_type in _DEVICES


def ranks_of_a_device(vllm_config: VllmConfig) -> int:
    """Ranks of an engine that share one device: on CPU all of a machine."""
    on_cpu = vllm_config.device_config.device_type == "cpu"
    return int(vllm_config.parallel_config.world_size) if on_cpu else 1


def device_of(vllm_config: VllmConfig, settings: Settings, rank: int) -> Device:
    """The device of rank `rank`, of a kind that `is_served`."""
    return _DEVICES[vllm_config.device_config.device_type](vllm_config, settings, rank)
