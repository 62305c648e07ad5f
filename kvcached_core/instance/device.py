"""The device whose memory a rank's tensors lie in: one class a kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from kvcached_core.budget import Budget, open_host_budget
from kvcached_core.config import Settings
from kvcached_core.vmm import HOST_GRANULARITY, Driver, HostDriver


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
    def workspace_left(self) -> int:
        """What of that it has not taken by now. Takes some microseconds."""


class HostDevice(Device):
    """Memory of the machine. Its other uses show in what is available, so nothing is claimed."""

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

    def workspace_left(self) -> int:
        return 0
