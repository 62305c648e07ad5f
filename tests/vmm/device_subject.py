"""Looking at memory that the host cannot reach, through the CUDA driver's own calls."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from kvcached_core.vmm import CudaDriver

from .subject import Subject

LIBCUDA = "libcuda.so.1"


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class DeviceSubject(Subject):
    """A driver over a device of the library; the caller's thread keeps its context."""

    def __init__(self, library: str = LIBCUDA, device: int = 0) -> None:
        super().__init__(CudaDriver(device, library))
        self.grain = self.granule
        self.library = ctypes.CDLL(library)
        self.device = device
        self.context = ctypes.c_void_p()
        # Of the device, like the driver's own; retained until the process ends.
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)

    def call(self, name: str, *args: object) -> None:
        assert getattr(self.library, name)(*args) == 0, name

    @contextmanager
    def current(self) -> Iterator[None]:
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def read(self, address: int, size: int) -> bytes:
        out = ctypes.create_string_buffer(size)
        with self.current():
            self.call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return out.raw

    def write(self, address: int, data: bytes) -> None:
        with self.current():
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def fill(self, address: int, size: int, value: int) -> None:
        with self.current():
            self.call("cuMemsetD8_v2", ctypes.c_uint64(address), value, ctypes.c_size_t(size))
            self.call("cuCtxSynchronize")

    def is_filled(self, address: int, size: int, value: int) -> bool:
        return self.read(address, size) == bytes([value]) * size

    def readable(self, address: int, size: int) -> int:
        return self.granule * sum(
            self.is_accessible(at) for at in range(address, address + size, self.granule)
        )

    def is_accessible(self, address: int) -> bool:
        flags, here = ctypes.c_ulonglong(), _Location(1, self.device)
        with self.current():
            status = self.library.cuMemGetAccess(
                ctypes.byref(flags), ctypes.byref(here), ctypes.c_uint64(address)
            )
        return status == 0 and flags.value == 3
