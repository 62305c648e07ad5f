"""What only a real NVIDIA device can show: `pytest -m gpu tests/vmm`, where torch is installed."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import pytest

from kvcached_core.vmm import Arena, CudaDriver, DeviceDriver, OutOfMemory

from .device_life import in_a_thread
from .subject import DEADLINE, run_script

pytestmark = pytest.mark.gpu
PAGES = 64


@pytest.fixture(scope="module")
def torch() -> Any:
    found = importlib.import_module("torch")
    found.cuda.init()
    return found


@pytest.fixture
def driver() -> DeviceDriver:
    return CudaDriver()


@pytest.fixture
def arena(driver: DeviceDriver) -> Arena:
    return Arena.reserve(driver, PAGES * driver.granularity())


def cycle(driver: DeviceDriver, arena: Arena, pages: int = PAGES) -> None:
    granule = driver.granularity()
    for page in range(pages):
        arena.map(page * granule, driver.create(granule), fresh=False)
    for page in range(pages):
        driver.release(arena.unmap(page * granule))


def test_the_key_is_the_devices_uuid(torch: Any, driver: DeviceDriver) -> None:
    assert driver.device_key() == f"cuda:GPU-{torch.cuda.get_device_properties(0).uuid}"


def test_memory_comes_from_the_device_and_goes_back(driver: DeviceDriver) -> None:
    size = 512 * driver.granularity()
    before = driver.free_bytes()
    handle = driver.create(size)
    assert driver.free_bytes() <= before - size
    driver.release(handle)
    assert driver.free_bytes() > before - size // 2


def test_more_than_is_free_is_out_of_memory(torch: Any, driver: DeviceDriver) -> None:
    granule = driver.granularity()
    with pytest.raises(OutOfMemory, match="CUDA_ERROR_OUT_OF_MEMORY"):
        driver.create(torch.cuda.mem_get_info()[1] // granule * granule)
    assert driver.held_bytes() == 0
    driver.release(driver.create(granule))


def test_a_tensor_of_torch_over_pages_that_come_and_go(
    torch: Any, driver: DeviceDriver, arena: Arena
) -> None:
    granule = driver.granularity()
    tensor = torch.from_dlpack(arena.tensor(0, arena.size)).view(torch.float32)
    assert tensor.device == torch.device("cuda", 0)
    pages = tensor.view(PAGES, -1)
    for page in (3, 4, 60):
        arena.map(page * granule, driver.create(granule), fresh=False)
        assert not pages[page].any()
        pages[page].fill_(page)
    assert [pages[page].sum().item() for page in (3, 60)] == [3 * granule / 4, 60 * granule / 4]
    torch.cuda.synchronize()
    handle = arena.unmap(4 * granule)
    arena.map(5 * granule, handle, fresh=False)
    assert not pages[5].any() and pages[3].all()


@pytest.mark.parametrize("adopts", [True, False])
def test_a_graph_is_captured_while_another_thread_maps(
    torch: Any, driver: DeviceDriver, arena: Arena, adopts: bool
) -> None:
    numbers = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def work() -> None:
        if adopts:
            driver.adopt_thread()
        driver.free_bytes()
        cycle(driver, arena)
        assert driver.fence(0).wait(1000 * DEADLINE)

    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        numbers += 1
        in_a_thread(work)
        numbers += 1
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert numbers.eq(6).all()


def test_a_thread_keeps_the_context_that_it_had(torch: Any, driver: DeviceDriver) -> None:
    library = ctypes.CDLL("libcuda.so.1")

    def current() -> int | None:
        found = ctypes.c_void_p()
        assert library.cuCtxGetCurrent(ctypes.byref(found)) == 0
        return found.value

    torch.zeros(1, device="cuda")
    mine = current()
    cycle(driver, Arena.reserve(driver, driver.granularity()), 1)
    assert current() == mine is not None

    def elsewhere() -> None:
        assert current() is None
        driver.release(driver.create(driver.granularity()))
        assert current() is None
        driver.adopt_thread()
        assert current() == mine

    in_a_thread(elsewhere)


def test_a_fence_passes_behind_the_work_on_its_stream(torch: Any, driver: DeviceDriver) -> None:
    busy, idle = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(2_000_000_000)
        fence = driver.fence(busy.cuda_stream)
    beside = driver.fence(idle.cuda_stream)
    assert beside.wait(1000 * DEADLINE)
    assert not fence.passed()
    cycle(driver, Arena.reserve(driver, driver.granularity()), 1)  # waits for no other's work
    assert not fence.passed()
    assert fence.wait(1000 * DEADLINE) and busy.query()


def test_a_lost_device_is_told_and_the_process_ends_well() -> None:
    out = run_script("""
import torch
from kvcached_core.vmm import Arena, CudaDriver, DeviceLost, DriverError

driver = CudaDriver()
arena = Arena.reserve(driver, 4 * driver.granularity())
handle = driver.create(driver.granularity())
driver.check_alive()
tensor = torch.from_dlpack(arena.tensor(0, arena.size))
tensor.fill_(1)  # no memory there
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("illegal" in str(error))
try:
    arena.map(0, handle)
except DriverError as error:
    print("CUDA_ERROR_ILLEGAL_ADDRESS" in str(error))
for call in (driver.check_alive, driver.free_bytes):
    try:
        call()
    except DeviceLost as error:
        print(driver.device_key() in str(error))
""")
    assert out == "True\n" * 4


def test_a_forked_child_has_no_effect() -> None:
    run_script("""
import os
from kvcached_core.vmm import CudaDriver, InvalidArgument

driver = CudaDriver()
handle = driver.create(driver.granularity())
fence = driver.fence()
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: driver.release(handle), driver.free_bytes, fence.passed):
        try:
            call()
        except InvalidArgument:
            refused += 1
    del driver, fence
    os._exit(0 if refused == 3 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
driver.release(handle)
assert driver.held_bytes() == 0 and fence.wait(10_000)
""")
