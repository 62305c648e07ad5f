#include "vmm/cuda_library.h"

namespace kvcached::vmm::cuda {
namespace {

constexpr const char* kAdvice =
    "Storage on an NVIDIA device needs the driver's own library (it comes with the driver, not with"
    " CUDA's toolkit or torch): install the driver, start the container with its device (--gpus"
    " all), or keep the KV cache elsewhere";

}  // namespace

Library::Library(const std::string& name) {
  const SharedLibrary library({name}, kAdvice);
  library.find("cuInit", init);
  library.find("cuGetErrorName", get_error_name);
  library.find("cuGetErrorString", get_error_string);
  library.find("cuDeviceGet", device_get);
  library.find("cuDeviceGetCount", device_get_count);
  library.find("cuDeviceGetAttribute", device_get_attribute);
  library.find("cuDeviceGetUuid_v2", device_get_uuid);
  library.find("cuDevicePrimaryCtxRetain", primary_retain);
  library.find("cuDevicePrimaryCtxRelease_v2", primary_release);
  library.find("cuCtxGetCurrent", get_current);
  library.find("cuCtxSetCurrent", set_current);
  library.find("cuCtxPushCurrent_v2", push_current);
  library.find("cuCtxPopCurrent_v2", pop_current);
  library.find("cuThreadExchangeStreamCaptureMode", exchange_capture_mode);
  library.find("cuMemGetAllocationGranularity", get_granularity);
  library.find("cuMemAddressReserve", address_reserve);
  library.find("cuMemAddressFree", address_free);
  library.find("cuMemCreate", create);
  library.find("cuMemRelease", release);
  library.find("cuMemMap", map);
  library.find("cuMemSetAccess", set_access);
  library.find("cuMemUnmap", unmap);
  library.find("cuMemGetInfo_v2", get_info);
  library.find("cuMemsetD8Async", memset_async);
  library.find("cuStreamCreateWithPriority", stream_create);
  library.find("cuStreamDestroy_v2", stream_destroy);
  library.find("cuEventCreate", event_create);
  library.find("cuEventDestroy_v2", event_destroy);
  library.find("cuEventRecord", event_record);
  library.find("cuEventQuery", event_query);
}

}  // namespace kvcached::vmm::cuda
