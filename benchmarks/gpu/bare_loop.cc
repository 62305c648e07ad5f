// The loop that our own path is held against: for each page create, map, set access, and nothing
// beside; then unmap and release. Called from driver.py through ctypes. One thread at a time.
//
// g++ -std=c++17 -O2 -shared -fPIC -I csrc -o bare_loop.so benchmarks/gpu/bare_loop.cc
//     csrc/vmm/cuda_library.cc csrc/vmm/shared_library.cc -ldl
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "vmm/cuda_library.h"

namespace {

using namespace kvcached::vmm::cuda;
using Clock = std::chrono::steady_clock;

std::unique_ptr<Library> cuda;
DeviceOrdinal device;
Context* context;
Stream* stream;
Event* event;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Result zero(DevicePointer address, std::size_t size) {
  if (Result r = cuda->memset_async(address, 0, size, stream)) return r;
  if (Result r = cuda->event_record(event, stream)) return r;
  constexpr Result kNotReady = 600;
  Result r;
  while ((r = cuda->event_query(event)) == kNotReady) {
  }
  return r;
}

Result map(DevicePointer base, std::size_t page, bool zeroes,
           std::vector<AllocationHandle>& handles) {
  AllocationProp prop{};
  prop.type = kPinned;
  prop.location = {kLocationDevice, device};
  const AccessDesc access{{kLocationDevice, device}, kReadWrite};
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const DevicePointer address = base + i * page;
    if (Result r = cuda->create(&handles[i], page, &prop, 0)) return r;
    if (Result r = cuda->map(address, page, 0, handles[i], 0)) return r;
    if (Result r = cuda->set_access(address, page, &access, 1)) return r;
    if (!zeroes) continue;
    if (Result r = zero(address, page)) return r;
  }
  return 0;
}

Result unmap(DevicePointer base, std::size_t page, const std::vector<AllocationHandle>& handles) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (Result r = cuda->unmap(base + i * page, page)) return r;
    if (Result r = cuda->release(handles[i])) return r;
  }
  return 0;
}

}  // namespace

extern "C" {

// Opens the library and makes the device's primary context the calling thread's. 0, or the
// library's status; -1 if there is no such library.
int bare_open(const char* library, int index) {
  try {
    cuda = std::make_unique<Library>(library);
  } catch (const std::exception&) {
    return -1;
  }
  if (Result r = cuda->init(0)) return r;
  if (Result r = cuda->device_get(&device, index)) return r;
  if (Result r = cuda->primary_retain(&context, device)) return r;
  if (Result r = cuda->set_current(context)) return r;
  if (Result r = cuda->stream_create(&stream, kNonBlocking, kFirst)) return r;
  return cuda->event_create(&event, kDisableTiming);
}

// Takes `pages` pages of `page` bytes and gives them back; `zeroes`: each is zeroed too, and waited
// for. seconds[0] is what taking took, seconds[1] giving back. 0, or the library's status.
int bare_loop(std::size_t page, std::size_t pages, int zeroes, double* seconds) {
  DevicePointer base = 0;
  std::vector<AllocationHandle> handles(pages);
  if (Result r = cuda->address_reserve(&base, page * pages, 0, 0, 0)) return r;
  Clock::time_point begin = Clock::now();
  if (Result r = map(base, page, zeroes != 0, handles)) return r;
  seconds[0] = since(begin);
  begin = Clock::now();
  if (Result r = unmap(base, page, handles)) return r;
  seconds[1] = since(begin);
  return cuda->address_free(base, page * pages);
}
}
