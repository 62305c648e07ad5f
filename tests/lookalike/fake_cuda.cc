// A libcuda over host memory: what csrc/vmm/cuda_library.h opens, and what a test needs besides.
#include <cstring>

#include "machine.h"

using namespace lookalike;

namespace {

struct Context {
  int device;
};
Context contexts[kDevices] = {{0}, {1}};

std::vector<Context*>& stack() {
  thread_local std::vector<Context*> contexts_of_thread;
  return contexts_of_thread;
}

Context* current() { return stack().empty() ? nullptr : stack().back(); }

bool is_current() { return current() != nullptr && machine().retained[current()->device] > 0; }

template <class Work>
int call(const char* name, unsigned needs, const Work& work) {
  return machine().call(name, needs, is_current(), work);
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

// The device that is current is the one that is meant.
bool is_here(const Location& location) {
  return location.type == 1 && location.id == current()->device;
}
bool is_memory_here(const Prop& prop) { return prop.type == 1 && is_here(prop.location); }

const char* name_of(int status) {
  switch (status) {
    case kSuccess:
      return "CUDA_SUCCESS";
    case kInvalidValue:
      return "CUDA_ERROR_INVALID_VALUE";
    case kOutOfMemory:
      return "CUDA_ERROR_OUT_OF_MEMORY";
    default:
      return nullptr;
  }
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return call("cuInit", kNothing, [] {
    machine().started = true;
    return kSuccess;
  });
}

int cuGetErrorName(int status, const char** out) {
  *out = name_of(status);
  return *out == nullptr ? kInvalidValue : kSuccess;
}

int cuGetErrorString(int status, const char** out) {
  *out = name_of(status) == nullptr ? nullptr : "as the look-alike says";
  return *out == nullptr ? kInvalidValue : kSuccess;
}

int cuDeviceGetCount(int* out) {
  return call("cuDeviceGetCount", kStarted, [=] {
    *out = kDevices;
    return kSuccess;
  });
}

int cuDeviceGet(int* out, int index) {
  return call("cuDeviceGet", kStarted, [=] {
    *out = index;
    return index < kDevices ? kSuccess : kInvalidDevice;
  });
}

int cuDeviceGetAttribute(int* out, int attribute, int) {
  return call("cuDeviceGetAttribute", kStarted, [=] {
    *out = attribute == 102;
    return kSuccess;
  });
}

int cuDeviceGetUuid_v2(unsigned char* out, int device) {
  return call("cuDeviceGetUuid_v2", kStarted, [=] {
    for (int i = 0; i < 16; ++i) out[i] = static_cast<unsigned char>(16 * device + i);
    return kSuccess;
  });
}

int cuDevicePrimaryCtxRetain(Context** out, int device) {
  return call("cuDevicePrimaryCtxRetain", kStarted, [=] {
    ++machine().retained[device];
    *out = &contexts[device];
    return kSuccess;
  });
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  return call("cuDevicePrimaryCtxRelease_v2", kStarted, [=] {
    --machine().retained[device];
    return kSuccess;
  });
}

int cuCtxGetCurrent(Context** out) {
  return call("cuCtxGetCurrent", kStarted, [=] {
    *out = current();
    return kSuccess;
  });
}

int cuCtxSetCurrent(Context* context) {
  return call("cuCtxSetCurrent", kStarted, [=] {
    if (!stack().empty()) stack().pop_back();
    if (context != nullptr) stack().push_back(context);
    return kSuccess;
  });
}

int cuCtxPushCurrent_v2(Context* context) {
  return call("cuCtxPushCurrent_v2", kStarted, [=] {
    stack().push_back(context);
    return kSuccess;
  });
}

int cuCtxPopCurrent_v2(Context** out) {
  return call("cuCtxPopCurrent_v2", kStarted, [=] {
    if (stack().empty()) return kInvalidContext;
    *out = current();
    stack().pop_back();
    return kSuccess;
  });
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  return call("cuThreadExchangeStreamCaptureMode", kStarted, [=] {
    std::swap(*mode, capture_mode());
    return kSuccess;
  });
}

int cuMemGetAllocationGranularity(std::size_t* out, const Prop* prop, int) {
  return call("cuMemGetAllocationGranularity", kStarted | kDevice, [=] {
    *out = machine().granularity;
    return is_memory_here(*prop) ? kSuccess : kInvalidValue;
  });
}

int cuMemAddressReserve(Address* out, std::size_t size, std::size_t alignment, Address,
                        unsigned long long) {
  return call("cuMemAddressReserve", kEverything,
              [=] { return machine().reserve(*out, size, alignment); });
}

int cuMemAddressFree(Address base, std::size_t size) {
  return call("cuMemAddressFree", kEverything, [=] { return machine().unreserve(base, size); });
}

int cuMemCreate(std::uint64_t* out, std::size_t size, const Prop* prop, unsigned long long) {
  return call("cuMemCreate", kEverything, [=] {
    return is_memory_here(*prop) ? machine().create(*out, size) : int{kInvalidValue};
  });
}

int cuMemRelease(std::uint64_t handle) {
  return call("cuMemRelease", kEverything, [=] { return machine().release(handle); });
}

int cuMemMap(Address address, std::size_t size, std::size_t offset, std::uint64_t handle,
             unsigned long long) {
  return call("cuMemMap", kEverything, [=] {
    return offset == 0 ? machine().map(address, size, handle) : int{kInvalidValue};
  });
}

int cuMemSetAccess(Address address, std::size_t size, const Access* access, std::size_t count) {
  return call("cuMemSetAccess", kEverything, [=] {
    const bool right = count == 1 && is_here(access->location) && access->flags == 3;
    return right ? machine().set_access(address, size) : int{kInvalidValue};
  });
}

int cuMemGetAccess(unsigned long long* flags, const Location*, Address address) {
  return call("cuMemGetAccess", kEverything,
              [=] { return machine().get_access(*flags, address); });
}

int cuMemUnmap(Address address, std::size_t size) {
  return call("cuMemUnmap", kEverything, [=] { return machine().unmap(address, size); });
}

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return call("cuMemGetInfo_v2", kEverything, [=] {
    *free = machine().free_bytes();
    *total = machine().memory;
    return kSuccess;
  });
}

int cuMemcpyHtoD_v2(Address to, const void* from, std::size_t size) {
  return call("cuMemcpyHtoD_v2", kEverything, [=] {
    return machine().copy(reinterpret_cast<void*>(to), from, size, to);
  });
}

int cuMemcpyDtoH_v2(void* to, Address from, std::size_t size) {
  return call("cuMemcpyDtoH_v2", kEverything, [=] {
    return machine().copy(to, reinterpret_cast<const void*>(from), size, from);
  });
}

int cuMemsetD8_v2(Address address, unsigned char value, std::size_t size) {
  return call("cuMemsetD8_v2", kEverything, [=] {
    return machine().fill(address, value, size, machine().stream(nullptr));
  });
}

int cuMemsetD8Async(Address address, unsigned char value, std::size_t size, void* stream) {
  return call("cuMemsetD8Async", kEverything, [=] {
    return machine().fill(address, value, size, machine().stream(stream));
  });
}

int cuCtxSynchronize() {
  return call("cuCtxSynchronize", kEverything, [] { return kSuccess; });
}

int cuStreamCreateWithPriority(Stream** out, unsigned flags, int) {
  return call("cuStreamCreateWithPriority", kEverything, [=] {
    *out = machine().add_stream((flags & 1) == 0);
    return kSuccess;
  });
}

int cuStreamDestroy_v2(Stream*) {
  return call("cuStreamDestroy_v2", kEverything, [] {
    --machine().live_streams;
    return kSuccess;
  });
}

int cuStreamBeginCapture_v2(Stream*, int mode) {
  return call("cuStreamBeginCapture_v2", kStarted | kDevice,
              [=] { return machine().begin_capture(mode); });
}

int cuStreamEndCapture(Stream*, void**) {
  return call("cuStreamEndCapture", kStarted | kDevice, [] { return machine().end_capture(); });
}

int cuEventCreate(Event** out, unsigned flags) {
  return call("cuEventCreate", kEverything, [=] {
    if (flags != 2) return kInvalidValue;  // with timing it would cost more
    *out = new Event;
    ++machine().live_events;
    return kSuccess;
  });
}

int cuEventDestroy_v2(Event* event) {
  return call("cuEventDestroy_v2", kEverything, [=] {
    delete event;
    --machine().live_events;
    return kSuccess;
  });
}

int cuEventRecord(Event* event, void* stream) {
  return call("cuEventRecord", kEverything, [=] { return machine().record(*event, stream); });
}

int cuEventQuery(Event* event) {
  return call("cuEventQuery", kEverything, [=] { return machine().query(*event); });
}

}  // extern "C"
