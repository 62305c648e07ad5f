// The part of the HIP runtime API (libamdhip64) that we call, as its published ABI has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "vmm/shared_library.h"

namespace kvcached::vmm::hip {

using Result = int;
struct Allocation;  // opaque, as are a stream and an event
struct Stream;
struct Event;

constexpr int kPinned = 1;              // hipMemAllocationTypePinned
constexpr int kLocationDevice = 1;      // hipMemLocationTypeDevice
constexpr int kReadWrite = 3;           // hipMemAccessFlagsProtReadWrite
constexpr int kMinimumGranularity = 0;  // hipMemAllocationGranularityMinimum
constexpr unsigned kNonBlocking = 1;    // hipStreamNonBlocking
constexpr int kFirst = -1;              // priority of a stream: before those of 0
constexpr unsigned kDisableTiming = 2;  // hipEventDisableTiming
constexpr int kCaptureRelaxed = 2;      // hipStreamCaptureModeRelaxed

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
  } flags;
};
static_assert(sizeof(AllocationProp) == 32);
struct AccessDesc {
  Location location;
  int flags;
};
static_assert(sizeof(AccessDesc) == 12);

struct Library {
  // DeviceUnavailable if none of these can be opened, or it is too old.
  explicit Library(const std::vector<std::string>& names);

  Result (*init)(unsigned flags);
  const char* (*get_error_name)(Result);
  const char* (*get_error_string)(Result);
  Result (*get_last_error)();
  Result (*get_device_count)(int*);
  Result (*device_get_uuid)(Uuid*, int device);
  Result (*device_get_pci_bus_id)(char* out, int size, int device);
  Result (*get_device)(int*);
  Result (*set_device)(int);
  Result (*exchange_capture_mode)(int* mode);
  Result (*get_granularity)(std::size_t*, const AllocationProp*, int option);
  Result (*address_reserve)(void**, std::size_t size, std::size_t alignment, void* hint,
                            unsigned long long flags);
  Result (*address_free)(void*, std::size_t);
  Result (*create)(Allocation**, std::size_t, const AllocationProp*, unsigned long long flags);
  Result (*release)(Allocation*);
  Result (*map)(void*, std::size_t size, std::size_t offset, Allocation*, unsigned long long flags);
  Result (*set_access)(void*, std::size_t, const AccessDesc*, std::size_t count);
  Result (*unmap)(void*, std::size_t);
  Result (*get_info)(std::size_t* free, std::size_t* total);
  Result (*memset_async)(void*, int value, std::size_t, Stream*);
  Result (*stream_create)(Stream**, unsigned flags, int priority);
  Result (*stream_destroy)(Stream*);
  Result (*event_create)(Event**, unsigned flags);
  Result (*event_destroy)(Event*);
  Result (*event_record)(Event*, Stream*);
  Result (*event_query)(Event*);
};

}  // namespace kvcached::vmm::hip
