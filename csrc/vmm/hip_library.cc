#include "vmm/hip_library.h"

namespace kvcached::vmm::hip {
namespace {

constexpr const char* kAdvice =
    "Storage on an AMD device needs ROCm's runtime: install it, or set LD_LIBRARY_PATH to where it"
    " is (the library comes with torch's ROCm build too, in torch/lib), or keep the KV cache"
    " elsewhere";

}  // namespace

Library::Library(const std::vector<std::string>& names) {
  const SharedLibrary library(names, kAdvice);
  library.find("hipInit", init);
  library.find("hipGetErrorName", get_error_name);
  library.find("hipGetErrorString", get_error_string);
  library.find("hipGetLastError", get_last_error);
  library.find("hipGetDeviceCount", get_device_count);
  library.find("hipDeviceGetUuid", device_get_uuid);
  library.find("hipDeviceGetPCIBusId", device_get_pci_bus_id);
  library.find("hipGetDevice", get_device);
  library.find("hipSetDevice", set_device);
  library.find("hipThreadExchangeStreamCaptureMode", exchange_capture_mode);
  library.find("hipMemGetAllocationGranularity", get_granularity);
  library.find("hipMemAddressReserve", address_reserve);
  library.find("hipMemAddressFree", address_free);
  library.find("hipMemCreate", create);
  library.find("hipMemRelease", release);
  library.find("hipMemMap", map);
  library.find("hipMemSetAccess", set_access);
  library.find("hipMemUnmap", unmap);
  library.find("hipMemGetInfo", get_info);
  library.find("hipMemsetAsync", memset_async);
  library.find("hipStreamCreateWithPriority", stream_create);
  library.find("hipStreamDestroy", stream_destroy);
  library.find("hipEventCreateWithFlags", event_create);
  library.find("hipEventDestroy", event_destroy);
  library.find("hipEventRecord", event_record);
  library.find("hipEventQuery", event_query);
}

}  // namespace kvcached::vmm::hip
