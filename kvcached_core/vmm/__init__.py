"""Arenas and drivers: stable addresses, and physical memory that comes and goes under them.

The contracts are C++ headers: ``csrc/vmm/driver.h`` (what every driver promises),
``csrc/vmm/errors.h`` (what a call fails with, and what to do then), ``csrc/vmm/fence.h``,
``csrc/vmm/arena.h`` (one reserved range and what is mapped in it) and ``csrc/vmm/granules.h`` (the
memory behind pages of any size). ``csrc/vmm/faulty_driver.h`` is the fault-injecting wrapper.
``probe`` and ``readable_bytes`` tell without a fault what can be read; tests use them to prove that
unmapped memory cannot.
"""

import mmap

from kvcached_core._native import (
    Arena,
    CudaDriver,
    DeviceDriver,
    DeviceLost,
    DeviceUnavailable,
    Driver,
    DriverError,
    FaultyDriver,
    Fence,
    Granules,
    Handle,
    HipDriver,
    HostDriver,
    HostLimit,
    InjectedFault,
    InvalidArgument,
    OutOfMemory,
    Quarantined,
    QuotaReached,
    RangeInUse,
    TensorView,
    machine_free_bytes,
    probe,
    readable_bytes,
)

HOST_GRANULARITY = mmap.PAGESIZE
"""Bytes of the host driver's smallest physical unit, known without a driver."""

__all__ = [
    "HOST_GRANULARITY",
    "Arena",
    "CudaDriver",
    "DeviceDriver",
    "DeviceLost",
    "DeviceUnavailable",
    "Driver",
    "DriverError",
    "FaultyDriver",
    "Fence",
    "Granules",
    "Handle",
    "HipDriver",
    "HostDriver",
    "HostLimit",
    "InjectedFault",
    "InvalidArgument",
    "OutOfMemory",
    "Quarantined",
    "QuotaReached",
    "RangeInUse",
    "TensorView",
    "machine_free_bytes",
    "probe",
    "readable_bytes",
]
