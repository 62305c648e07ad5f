"""The device whose memory a rank's tensors lie in: one class a kind, chosen in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvcached_core.budget import Budget, open_host_budget
from kvcached_core.config import Settings
from kvcached_core.vmm import HOST_GRANULARITY, Driver, HostDriver

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Device(ABC):
    """One rank's device. The engine core asks for its numbers and its budget's record, which opens
    nothing there; only the rank makes a driver. Sizes are bytes."""

    tensor_type: str
    """Torch's name of the kind of device."""
    granularity: int
    """Of its driver."""
    key: str
    """Of its budget's record, the same in every process and container that sees this device."""

    @abstractmethod
    def open_budget(self, directory: Path) -> Budget:
        """The device's record, made if there is none. Raises BudgetError, CapacityConflict."""

    @abstractmethod
    def make_driver(self) -> Driver:
        """In the rank's process, once. Raises DriverError."""

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

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.key = f"host:{settings.budget}"

    def open_budget(self, directory: Path) -> Budget:
        settings = self._settings
        return open_host_budget(directory, settings.budget, settings.capacity, settings.headroom)

    def make_driver(self) -> Driver:
        return HostDriver()

    def workspace_bytes(self) -> int:
        return 0

    def hold_workspace(self) -> None:
        pass


# By vLLM's name of the kind; each is called with the settings and the rank.
_DEVICES: dict[str, Callable[[Settings, int], Device]] = {
    "cpu": lambda settings, rank: HostDevice(settings),
}


def is_served(device_type: str) -> bool:
    """Whether there is a driver for devices of this kind."""
    return device_type in _DEVICES


def device_of(vllm_config: VllmConfig, settings: Settings, rank: int) -> Device:
    """The device of rank `rank`, of a kind that `is_served`."""
    return _DEVICES[vllm_config.device_config.device_type](settings, rank)
