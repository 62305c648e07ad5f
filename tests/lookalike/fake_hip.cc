// A libamdhip64 over host memory: what csrc/vmm/hip_library.h opens, and what a test needs besides.
#include <cstdio>
#include <cstring>

#include "machine.h"

using namespace lookalike;

namespace {

int& current() {
  thread_local int device = 0;
  return device;
}

int& last_error() {
  thread_local int status = kSuccess;
  return status;
}

// A device is current in every thread, so no call is refused for want of one; but a call that is
// meant for a device which is not the current one is.
template <class Work>
int call(const char* name, unsigned needs, const Work& work) {
  const int status = machine().call(name, needs, true, work);
  if (status != kSuccess) last_error() = status;
  return status;
}

struct Location {
  int type, id;
};
struct Prop {
  int type, handle_types;
  Location location;
};
struct Access {
  Location location;
  int flags;
};

bool is_here(const Location& location) { return location.type == 1 && location.id == current(); }
bool is_memory_here(const Prop& prop) { return prop.type == 1 && is_here(prop.location); }

}  // namespace

extern "C" {

int hipInit(unsigned) {
  return call("hipInit", kNothing, [] {
    machine().started = true;
    return kSuccess;
  });
}

const char* hipGetErrorName(int status) {
  return status == kOutOfMemory ? "hipErrorOutOfMemory" : "hipErrorOfTheLookalike";
}

const char* hipGetErrorString(int) { return "as the look-alike says"; }

int hipPeekAtLastError() { return last_error(); }

int hipGetLastError() {
  machine().call("hipGetLastError", kNothing, true, [] { return kSuccess; });
  const int status = last_error();
  last_error() = kSuccess;
  return status;
}

int hipGetDeviceCount(int* out) {
  return call("hipGetDeviceCount", kStarted, [=] {
    *out = kDevices;
    return kSuccess;
  });
}

// Device 0 has none.
int hipDeviceGetUuid(unsigned char* out, int device) {
  return call("hipDeviceGetUuid", kStarted, [=] {
    std::memset(out, 0, 16);
    if (device > 0) std::memcpy(out, "0123456789abcdef", 16);
    return kSuccess;
  });
}

int hipDeviceGetPCIBusId(char* out, int size, int device) {
  return call("hipDeviceGetPCIBusId", kStarted, [=] {
    std::snprintf(out, static_cast<std::size_t>(size), "0000:%02x:00.0", 3 + device);
    return kSuccess;
  });
}

int hipGetDevice(int* out) {
  return call("hipGetDevice", kStarted, [=] {
    *out = current();
    return kSuccess;
  });
}

int hipSetDevice(int device) {
  return call("hipSetDevice", kStarted, [=] {
    if (device < 0 || device >= kDevices) return kInvalidDevice;
    current() = device;
    return kSuccess;
  });
}

int hipThreadExchangeStreamCaptureMode(int* mode) {
  return call("hipThreadExchangeStreamCaptureMode", kStarted, [=] {
    std::swap(*mode, capture_mode());
    return kSuccess;
  });
}

int hipMemGetAllocationGranularity(std::size_t* out, const Prop* prop, int) {
  return call("hipMemGetAllocationGranularity", kStarted, [=] {
    *out = machine().granularity;
    return is_memory_here(*prop) ? kSuccess : kInvalidValue;
  });
}

int hipMemAddressReserve(Address* out, std::size_t size, std::size_t alignment, Address,
                         unsigned long long) {
  return call("hipMemAddressReserve", kEverything,
              [=] { return machine().reserve(*out, size, alignment); });
}

int hipMemAddressFree(Address base, std::size_t size) {
  return call("hipMemAddressFree", kEverything, [=] { return machine().unreserve(base, size); });
}

int hipMemCreate(std::uint64_t* out, std::size_t size, const Prop* prop, unsigned long long) {
  return call("hipMemCreate", kEverything, [=] {
    return is_memory_here(*prop) ? machine().create(*out, size) : int{kInvalidValue};
  });
}

int hipMemRelease(std::uint64_t handle) {
  return call("hipMemRelease", kEverything, [=] { return machine().release(handle); });
}

int hipMemMap(Address address, std::size_t size, std::size_t offset, std::uint64_t handle,
              unsigned long long) {
  return call("hipMemMap", kEverything, [=] {
    return offset == 0 ? machine().map(address, size, handle) : int{kInvalidValue};
  });
}

int hipMemSetAccess(Address address, std::size_t size, const Access* access, std::size_t count) {
  return call("hipMemSetAccess", kEverything, [=] {
    const bool right = count == 1 && is_here(access->location) && access->flags == 3;
    return right ? machine().set_access(address, size) : int{kInvalidValue};
  });
}

int hipMemUnmap(Address address, std::size_t size) {
  return call("hipMemUnmap", kEverything, [=] { return machine().unmap(address, size); });
}

int hipMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("hipMemGetInfo", kEverything, [=] {
    *free = machine().free_bytes();
    *total = machine().memory;
    return kSuccess;
  });
}

int hipMemsetAsync(Address address, int value, std::size_t size, void* stream) {
  return call("hipMemsetAsync", kEverything, [=] {
    return machine().fill(address, value, size, machine().stream(stream));
  });
}

int hipStreamCreateWithPriority(Stream** out, unsigned flags, int) {
  return call("hipStreamCreateWithPriority", kEverything, [=] {
    *out = machine().add_stream((flags & 1) == 0);
    return kSuccess;
  });
}

int hipStreamDestroy(Stream*) {
  return call("hipStreamDestroy", kEverything, [] {
    --machine().live_streams;
    return kSuccess;
  });
}

int hipStreamBeginCapture(Stream*, int mode) {
  return call("hipStreamBeginCapture", kStarted, [=] { return machine().begin_capture(mode); });
}

int hipStreamEndCapture(Stream*, void**) {
  return call("hipStreamEndCapture", kStarted, [] { return machine().end_capture(); });
}

int hipEventCreateWithFlags(Event** out, unsigned flags) {
  return call("hipEventCreateWithFlags", kEverything, [=] {
    if (flags != 2) return kInvalidValue;
    *out = new Event;
    ++machine().live_events;
    return kSuccess;
  });
}

int hipEventDestroy(Event* event) {
  return call("hipEventDestroy", kEverything, [=] {
    delete event;
    --machine().live_events;
    return kSuccess;
  });
}

int hipEventRecord(Event* event, void* stream) {
  return call("hipEventRecord", kEverything, [=] { return machine().record(*event, stream); });
}

int hipEventQuery(Event* event) {
  return call("hipEventQuery", kEverything, [=] { return machine().query(*event); });
}

}  // extern "C"
