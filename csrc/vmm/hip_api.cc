#include "vmm/hip_api.h"

#include <algorithm>
#include <cctype>

#include "vmm/device_status.h"
#include "vmm/device_uuid.h"
#include "vmm/dlpack.h"
#include "vmm/hip_driver.h"

namespace kvcached::vmm {
namespace {

hip::Stream* stream_of(std::uintptr_t number) { return reinterpret_cast<hip::Stream*>(number); }
hip::Event* event_of(std::uintptr_t number) { return reinterpret_cast<hip::Event*>(number); }
hip::Allocation* allocation_of(NativeHandle handle) {
  return reinterpret_cast<hip::Allocation*>(handle);
}

std::vector<std::string> names_of(const std::string& library) {
  if (!library.empty()) return {library};
  return {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};
}

// "" for a device that has none.
std::string identity(const hip::Uuid& uuid) {
  const auto all = [&](auto is) {
    return std::all_of(std::begin(uuid.bytes), std::end(uuid.bytes), is);
  };
  if (all([](unsigned char c) { return c == 0; })) return "";
  if (all([](unsigned char c) { return std::isalnum(c) != 0; }))
    return {std::begin(uuid.bytes), std::end(uuid.bytes)};
  return uuid_text(uuid.bytes);
}

}  // namespace

std::shared_ptr<DeviceDriver> make_hip_driver(int device, const std::string& library) {
  return std::make_shared<DeviceDriver>(std::make_unique<HipApi>(device, library));
}

HipApi::HipApi(int device, const std::string& library) : device_(device), hip_(names_of(library)) {
  find_device();
  ask_granularity();
}

void HipApi::start(const char* call, Status status) const {
  if (taken_back(status) == 0) return;
  throw DeviceUnavailable(text("hip device ", device_, " cannot be used: ", call, " says ",
                               describe(status),
                               "; see whether rocminfo lists it, and HIP_VISIBLE_DEVICES"));
}

void HipApi::find_device() {
  start("hipInit", hip_.init(0));
  int count = 0;
  start("hipGetDeviceCount", hip_.get_device_count(&count));
  if (device_ < 0 || device_ >= count)
    throw DeviceUnavailable(text("there is no hip device ", device_, ": this process sees ", count,
                                 ", counted from 0; see HIP_VISIBLE_DEVICES"));
  hip::Uuid uuid{};
  start("hipDeviceGetUuid", hip_.device_get_uuid(&uuid, device_));
  const std::string found = identity(uuid);
  key_ = "hip:GPU-" + found;
  if (!found.empty()) return;
  char bus[32] = {};
  start("hipDeviceGetPCIBusId", hip_.device_get_pci_bus_id(bus, sizeof(bus) - 1, device_));
  key_ = text("hip:PCI-", bus);
}

hip::AllocationProp HipApi::memory_here() const {
  hip::AllocationProp prop{};
  prop.type = hip::kPinned;
  prop.location = {hip::kLocationDevice, device_};
  return prop;
}

void HipApi::ask_granularity() {
  ThreadState before;
  start("hipSetDevice", enter(before));
  const hip::AllocationProp prop = memory_here();
  std::size_t found = 0;
  const Status status = hip_.get_granularity(&found, &prop, hip::kMinimumGranularity);
  leave(before);
  start("hipMemGetAllocationGranularity", status);
  granularity_ = found;
}

Status HipApi::taken_back(Status status) const {
  if (status != 0) static_cast<void>(hip_.get_last_error());
  return status;
}

int HipApi::dlpack_device_type() const { return kDLROCM; }

Outcome HipApi::outcome(Status status) const { return hip_outcome(status); }

std::string HipApi::describe(Status status) const {
  const char* const name = hip_.get_error_name(status);
  const char* const meaning = hip_.get_error_string(status);
  return text(name == nullptr ? "an unknown error" : name, " (", status, ")",
              meaning == nullptr ? "" : ": ", meaning == nullptr ? "" : meaning);
}

Status HipApi::enter(ThreadState& before) {
  int current = 0;
  if (const Status status = taken_back(hip_.get_device(&current)); status != 0) return status;
  if (current != device_) {
    if (const Status status = taken_back(hip_.set_device(device_)); status != 0) return status;
    before.switched = true;
  }
  before.current = static_cast<std::uintptr_t>(current);
  before.capture_mode = hip::kCaptureRelaxed;
  const Status status = taken_back(hip_.exchange_capture_mode(&before.capture_mode));
  if (status != 0 && before.switched) taken_back(hip_.set_device(current));
  return status;
}

void HipApi::leave(const ThreadState& before) {
  int mode = before.capture_mode;
  taken_back(hip_.exchange_capture_mode(&mode));
  if (before.switched) taken_back(hip_.set_device(static_cast<int>(before.current)));
}

Status HipApi::adopt() {
  if (const Status status = taken_back(hip_.set_device(device_)); status != 0) return status;
  int mode = hip::kCaptureRelaxed;
  return taken_back(hip_.exchange_capture_mode(&mode));
}

Status HipApi::reserve(Address& base, Bytes size) {
  void* found = nullptr;
  const Status status = hip_.address_reserve(&found, size, granularity_, nullptr, 0);
  base = address_of(found);
  return taken_back(status);
}

Status HipApi::unreserve(Address base, Bytes size) {
  return taken_back(hip_.address_free(pointer(base), size));
}

Status HipApi::create(NativeHandle& handle, Bytes size) {
  const hip::AllocationProp prop = memory_here();
  hip::Allocation* found = nullptr;
  const Status status = hip_.create(&found, size, &prop, 0);
  handle = address_of(found);
  return taken_back(status);
}

Status HipApi::release(NativeHandle handle) {
  return taken_back(hip_.release(allocation_of(handle)));
}

Status HipApi::map(Address address, Bytes size, NativeHandle handle) {
  return taken_back(hip_.map(pointer(address), size, 0, allocation_of(handle), 0));
}

Status HipApi::set_access(Address address, Bytes size) {
  const hip::AccessDesc access{{hip::kLocationDevice, device_}, hip::kReadWrite};
  return taken_back(hip_.set_access(pointer(address), size, &access, 1));
}

Status HipApi::unmap(Address address, Bytes size) {
  return taken_back(hip_.unmap(pointer(address), size));
}

Status HipApi::free_bytes(Bytes& free) {
  std::size_t found = 0, total = 0;
  const Status status = hip_.get_info(&found, &total);
  free = found;
  return taken_back(status);
}

Status HipApi::create_stream(std::uintptr_t& stream) {
  hip::Stream* made = nullptr;
  const Status status = hip_.stream_create(&made, hip::kNonBlocking, hip::kFirst);
  stream = address_of(made);
  return taken_back(status);
}

Status HipApi::destroy_stream(std::uintptr_t stream) {
  return taken_back(hip_.stream_destroy(stream_of(stream)));
}

Status HipApi::zero(Address address, Bytes size, std::uintptr_t stream) {
  return taken_back(hip_.memset_async(pointer(address), 0, size, stream_of(stream)));
}

Status HipApi::create_event(std::uintptr_t& event) {
  hip::Event* made = nullptr;
  const Status status = hip_.event_create(&made, hip::kDisableTiming);
  event = address_of(made);
  return taken_back(status);
}

Status HipApi::destroy_event(std::uintptr_t event) {
  return taken_back(hip_.event_destroy(event_of(event)));
}

Status HipApi::record(std::uintptr_t event, std::uintptr_t stream) {
  return taken_back(hip_.event_record(event_of(event), stream_of(stream)));
}

Status HipApi::query(std::uintptr_t event) { return taken_back(hip_.event_query(event_of(event))); }

}  // namespace kvcached::vmm
