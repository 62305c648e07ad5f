#include "vmm/cuda_api.h"

#include "vmm/cuda_driver.h"
#include "vmm/device_status.h"
#include "vmm/device_uuid.h"
#include "vmm/dlpack.h"

namespace kvcached::vmm {
namespace {

cuda::Stream* stream_of(std::uintptr_t number) { return reinterpret_cast<cuda::Stream*>(number); }
cuda::Event* event_of(std::uintptr_t number) { return reinterpret_cast<cuda::Event*>(number); }

}  // namespace

std::shared_ptr<DeviceDriver> make_cuda_driver(int device, const std::string& library) {
  return std::make_shared<DeviceDriver>(std::make_unique<CudaApi>(device, library));
}

CudaApi::CudaApi(int device, const std::string& library) : index_(device), cuda_(library) {
  find_device();
  start("cuDevicePrimaryCtxRetain", cuda_.primary_retain(&context_, device_));
  try {
    ask_granularity();
  } catch (...) {
    close();
    throw;
  }
}

void CudaApi::start(const char* call, Status status) const {
  if (status == 0) return;
  throw DeviceUnavailable(text("cuda device ", index_, " cannot be used: ", call, " says ",
                               describe(status),
                               "; see whether nvidia-smi lists it, and CUDA_VISIBLE_DEVICES"));
}

void CudaApi::find_device() {
  start("cuInit", cuda_.init(0));
  int count = 0;
  start("cuDeviceGetCount", cuda_.device_get_count(&count));
  if (index_ < 0 || index_ >= count)
    throw DeviceUnavailable(text("there is no cuda device ", index_, ": this process sees ", count,
                                 ", counted from 0; see CUDA_VISIBLE_DEVICES"));
  start("cuDeviceGet", cuda_.device_get(&device_, index_));
  int supported = 0;
  start("cuDeviceGetAttribute",
        cuda_.device_get_attribute(&supported, cuda::kVirtualMemorySupported, device_));
  if (supported == 0)
    throw DeviceUnavailable(text("cuda device ", index_,
                                 " cannot map memory under addresses (no virtual memory"
                                 " management): use another device or another storage"));
  cuda::Uuid uuid{};
  start("cuDeviceGetUuid", cuda_.device_get_uuid(&uuid, device_));
  key_ = "cuda:GPU-" + uuid_text(uuid.bytes);
}

cuda::AllocationProp CudaApi::memory_here() const {
  cuda::AllocationProp prop{};
  prop.type = cuda::kPinned;
  prop.location = {cuda::kLocationDevice, device_};
  return prop;
}

void CudaApi::ask_granularity() {
  ThreadState before;
  start("cuCtxPushCurrent", enter(before));
  const cuda::AllocationProp prop = memory_here();
  std::size_t found = 0;
  const Status status = cuda_.get_granularity(&found, &prop, cuda::kMinimumGranularity);
  leave(before);
  start("cuMemGetAllocationGranularity", status);
  granularity_ = found;
}

int CudaApi::dlpack_device_type() const { return kDLCUDA; }

Outcome CudaApi::outcome(Status status) const { return cuda_outcome(status); }

std::string CudaApi::describe(Status status) const {
  const char* name = nullptr;
  const char* meaning = nullptr;
  cuda_.get_error_name(status, &name);
  cuda_.get_error_string(status, &meaning);
  return text(name == nullptr ? "an unknown error" : name, " (", status, ")",
              meaning == nullptr ? "" : ": ", meaning == nullptr ? "" : meaning);
}

Status CudaApi::enter(ThreadState& before) {
  cuda::Context* current = nullptr;
  if (const Status status = cuda_.get_current(&current); status != 0) return status;
  if (current != context_) {
    if (const Status status = cuda_.push_current(context_); status != 0) return status;
    before.switched = true;
  }
  before.capture_mode = cuda::kCaptureRelaxed;
  const Status status = cuda_.exchange_capture_mode(&before.capture_mode);
  if (status != 0 && before.switched) cuda_.pop_current(&current);
  return status;
}

void CudaApi::leave(const ThreadState& before) {
  int mode = before.capture_mode;
  cuda_.exchange_capture_mode(&mode);
  cuda::Context* ours = nullptr;
  if (before.switched) cuda_.pop_current(&ours);
}

Status CudaApi::adopt() {
  if (const Status status = cuda_.set_current(context_); status != 0) return status;
  int mode = cuda::kCaptureRelaxed;
  return cuda_.exchange_capture_mode(&mode);
}

void CudaApi::close() { cuda_.primary_release(device_); }

Status CudaApi::reserve(Address& base, Bytes size) {
  cuda::DevicePointer found = 0;
  const Status status = cuda_.address_reserve(&found, size, granularity_, 0, 0);
  base = static_cast<Address>(found);
  return status;
}

Status CudaApi::unreserve(Address base, Bytes size) { return cuda_.address_free(base, size); }

Status CudaApi::create(NativeHandle& handle, Bytes size) {
  const cuda::AllocationProp prop = memory_here();
  cuda::AllocationHandle found = 0;
  const Status status = cuda_.create(&found, size, &prop, 0);
  handle = found;
  return status;
}

Status CudaApi::release(NativeHandle handle) { return cuda_.release(handle); }

Status CudaApi::map(Address address, Bytes size, NativeHandle handle) {
  return cuda_.map(address, size, 0, handle, 0);
}

Status CudaApi::set_access(Address address, Bytes size) {
  const cuda::AccessDesc access{{cuda::kLocationDevice, device_}, cuda::kReadWrite};
  return cuda_.set_access(address, size, &access, 1);
}

Status CudaApi::unmap(Address address, Bytes size) { return cuda_.unmap(address, size); }

Status CudaApi::free_bytes(Bytes& free) {
  std::size_t found = 0, total = 0;
  const Status status = cuda_.get_info(&found, &total);
  free = found;
  return status;
}

Status CudaApi::create_stream(std::uintptr_t& stream) {
  cuda::Stream* made = nullptr;
  const Status status = cuda_.stream_create(&made, cuda::kNonBlocking, cuda::kFirst);
  stream = address_of(made);
  return status;
}

Status CudaApi::destroy_stream(std::uintptr_t stream) {
  return cuda_.stream_destroy(stream_of(stream));
}

Status CudaApi::zero(Address address, Bytes size, std::uintptr_t stream) {
  return cuda_.memset_async(address, 0, size, stream_of(stream));
}

Status CudaApi::create_event(std::uintptr_t& event) {
  cuda::Event* made = nullptr;
  const Status status = cuda_.event_create(&made, cuda::kDisableTiming);
  event = address_of(made);
  return status;
}

Status CudaApi::destroy_event(std::uintptr_t event) { return cuda_.event_destroy(event_of(event)); }

Status CudaApi::record(std::uintptr_t event, std::uintptr_t stream) {
  return cuda_.event_record(event_of(event), stream_of(stream));
}

Status CudaApi::query(std::uintptr_t event) { return cuda_.event_query(event_of(event)); }

}  // namespace kvcached::vmm
