// The part of the CUDA driver API (libcuda) that we call, as its published ABI has it. Functions
// that come in versions carry the suffix that the API's own header would have chosen for us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "vmm/shared_library.h"

namespace kvcached::vmm::cuda {

using Result = int;
using DeviceOrdinal = int;
using DevicePointer = unsigned long long;
using AllocationHandle = unsigned long long;
struct Context;  // opaque, as are a stream and an event
struct Stream;
struct Event;

constexpr int kVirtualMemorySupported = 102;  // a device attribute
constexpr int kPinned = 1;                    // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr int kLocationDevice = 1;            // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kReadWrite = 3;                 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr int kMinimumGranularity = 0;        // CU_MEM_ALLOC_GRANULARITY_MINIMUM
constexpr unsigned kNonBlocking = 1;          // CU_STREAM_NON_BLOCKING
constexpr int kFirst = -1;                    // of a stream: before those of priority 0
constexpr unsigned kDisableTiming = 2;        // CU_EVENT_DISABLE_TIMING
constexpr int kCaptureRelaxed = 2;            // CU_STREAM_CAPTURE_MODE_RELAXED

struct Uuid {
  unsigned char bytes[16];
};
struct Location {
  int type;
  int id;
};
struct AllocationProp {
  int type;
  int requested_handle_types;
  Location location;
  void* win32_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(AllocationProp) == 32);
struct AccessDesc {
  Location location;
  int flags;
};
static_assert(sizeof(AccessDesc) == 12);

struct Library {
  // DeviceUnavailable if there is none, or it is too old.
  explicit Library(const std::string& name);

  Result (*init)(unsigned flags);
  Result (*get_error_name)(Result, const char** name);
  Result (*get_error_string)(Result, const char** text);
  Result (*device_get)(DeviceOrdinal*, int index);
  Result (*device_get_count)(int*);
  Result (*device_get_attribute)(int* value, int attribute, DeviceOrdinal);
  Result (*device_get_uuid)(Uuid*, DeviceOrdinal);
  Result (*primary_retain)(Context**, DeviceOrdinal);
  Result (*primary_release)(DeviceOrdinal);
  Result (*get_current)(Context**);
  Result (*set_current)(Context*);
  Result (*push_current)(Context*);
  Result (*pop_current)(Context**);
  Result (*exchange_capture_mode)(int* mode);
  Result (*get_granularity)(std::size_t*, const AllocationProp*, int option);
  Result (*address_reserve)(DevicePointer*, std::size_t size, std::size_t alignment,
                            DevicePointer hint, unsigned long long flags);
  Result (*address_free)(DevicePointer, std::size_t);
  Result (*create)(AllocationHandle*, std::size_t, const AllocationProp*, unsigned long long flags);
  Result (*release)(AllocationHandle);
  Result (*map)(DevicePointer, std::size_t size, std::size_t offset, AllocationHandle,
                unsigned long long flags);
  Result (*set_access)(DevicePointer, std::size_t, const AccessDesc*, std::size_t count);
  Result (*unmap)(DevicePointer, std::size_t);
  Result (*get_info)(std::size_t* free, std::size_t* total);
  Result (*memset_async)(DevicePointer, unsigned char value, std::size_t, Stream*);
  Result (*stream_create)(Stream**, unsigned flags, int priority);
  Result (*stream_destroy)(Stream*);
  Result (*event_create)(Event**, unsigned flags);
  Result (*event_destroy)(Event*);
  Result (*event_record)(Event*, Stream*);
  Result (*event_query)(Event*);
};

}  // namespace kvcached::vmm::cuda
