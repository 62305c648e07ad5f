"""The device whose memory a rank's tensors lie in: one class a kind, chosen in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from vllm.platforms import current_platform

from kvcached_core.budget import Budget, open_host_budget, open_record
from kvcached_core.config import Settings
from kvcached_core.vmm import HOST_GRANULARITY, CudaDriver, Driver, HostDriver

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Device(ABC):
    """One rank's device. The engine core asks for its numbers and its budget's record, which opens
    nothing there; only the rank makes a driver. Sizes are bytes."""

    tensor_type: str
    """Torch's name of the kind of device."""
    granularity: int
    """Of its driver."""
    page_size: int
    """Of pages where the settings name none: what a mapping costs there, against what a page holds
    beyond its use."""
    key: str
    """Of its budget's record, the same in every process and container that sees this device."""

    @abstractmethod
    def open_budget(self, directory: Path) -> Budget:
        """The device's record, made if there is none. Raises BudgetError, CapacityConflict."""

    @abstractmethod
    def make_driver(self) -> Driver:
        """In the rank's process, once. Raises DriverError."""

    @abstractmethod
    def streams(self) -> list[int]:
        """Native handles of the streams on which the calling thread's engine queues what touches
        the cache. None where work is done when its call returns."""

    @abstractmethod
    def workspace_bytes(self) -> int:
        """What the worker will yet take for other things than the cache: the peak of activations as
        profiling saw it, and graphs. Asked when profiling is over. Neighbours must leave it."""

    @abstractmethod
    def hold_workspace(self) -> None:
        """Takes that memory in the name of whoever needs it later, when warm-up is over and when
        the engine wakes. Raises RuntimeError if it is not to be had."""


class HostDevice(Device):
    """Memory of the machine. Its other uses show in what is available, so nothing is held."""

    tensor_type = "cpu"
    granularity = HOST_GRANULARITY
    page_size = 2 << 20

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.key = f"host:{settings.budget}"

    def open_budget(self, directory: Path) -> Budget:
        settings = self._settings
        return open_host_budget(directory, settings.budget, settings.capacity, settings.headroom)

    def make_driver(self) -> Driver:
        return HostDriver()

    def streams(self) -> list[int]:
        return []

    def workspace_bytes(self) -> int:
        return 0

    def hold_workspace(self) -> None:
        pass


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
        self._activations = 0

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
        peak = torch.cuda.max_memory_reserved(index)
        self._activations = max(0, peak - torch.cuda.memory_allocated(index))
        return self._activations + _GRAPHS

    def hold_workspace(self) -> None:
        # Torch keeps what it was given: the cache of its allocator then has room for the peak.
        device = torch.device("cuda", self._visible)
        torch.empty(self._activations, dtype=torch.int8, device=device)


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


def device_of(vllm_config: VllmConfig, settings: Settings, rank: int) -> Device:
    """The device of rank `rank`, of a kind that `is_served`."""
    return _DEVICES[vllm_config.device_config.device_type](vllm_config, settings, rank)
