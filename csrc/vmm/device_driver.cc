#include "vmm/device_driver.h"

#include <limits>

namespace kvcached::vmm {
namespace {

// Sums of two such sizes and addresses still fit.
constexpr Bytes kLargest = std::numeric_limits<Bytes>::max() / 2;
// Behind an engine's longest step; past this the device hangs.
constexpr std::chrono::seconds kZeroDeadline{60};

}  // namespace

DeviceDriver::DeviceDriver(std::unique_ptr<DeviceApi> api)
    : device_(std::make_shared<Device>(std::move(api))),
      events_(std::make_shared<DeviceEvents>(device_)),
      granularity_(device_->api().granularity()),
      table_(device_->api().name(), granularity_, kLargest) {
  device_->run("start", 0, 0, [&] { return this->api().create_stream(stream_); });
}

DeviceDriver::~DeviceDriver() {
  if (!device_->is_ours()) return;
  try {
    give_all_back();
  } catch (const DriverError&) {
    // The device is lost or the process is exiting: all goes with the context.
  }
}

void DeviceDriver::give_all_back() {
  const Device::Visit visit(*device_);
  for (const auto& [at, size] : table_.mappings())
    device_->run("end", at, size, [&, at = at, size = size] { return api().unmap(at, size); });
  for (const auto& [native, size] : table_.handles())
    device_->run("end", 0, size, [&, native = native] { return api().release(native); });
  for (const auto& [base, size] : table_.ranges())
    device_->run("end", base, size,
                 [&, base = base, size = size] { return api().unreserve(base, size); });
  device_->run("end", 0, 0, [&] { return api().destroy_stream(stream_); });
}

void* DeviceDriver::reserve(Bytes size) {
  device_->check_process("reserve");
  table_.check_multiple("reserve", "size", size);
  Address base = 0;
  try {
    device_->run("reserve", 0, size, [&] { return api().reserve(base, size); });
  } catch (const OutOfMemory& error) {
    throw HostLimit(error.what());  // of addresses: no memory was asked for
  }
  table_.add_range(base, size);
  return pointer(base);
}

void DeviceDriver::unreserve(void* base, Bytes size) {
  device_->check_process("unreserve");
  auto range = table_.remove_range(base, size);
  const Address at = address_of(base);
  device_->run("unreserve", at, size, [&] { return api().unreserve(at, size); });
  range.done();
}

Handle DeviceDriver::create(Bytes size) {
  device_->check_process("create");
  table_.check_multiple("create", "size", size);
  NativeHandle native = 0;
  device_->run("create", 0, size, [&] { return api().create(native, size); });
  held_ += size;
  return table_.add_handle(native, size);
}

void DeviceDriver::release(Handle handle) {
  device_->check_process("release");
  auto removal = table_.remove_handle(handle);
  const NativeHandle native = removal.value().native;
  device_->run("release", 0, handle.size, [&] { return api().release(native); });
  removal.done();
  held_ -= handle.size;
}

void DeviceDriver::map(void* address, Handle handle) {
  device_->check_process("map");
  auto edit = table_.map(address, handle);
  const Address at = address_of(address);
  device_->run("map", at, handle.size, [&] { return api().map(at, handle.size, edit.native()); });
  edit.done();
}

void DeviceDriver::set_access(void* address, Bytes size) {
  device_->check_process("set_access");
  auto edit = table_.set_access(address, size);
  const Address at = address_of(address);
  if (!edit.shut().empty())
    device_->run("set_access", at, size, [&] { return api().set_access(at, size); });
  edit.done();
}

void DeviceDriver::unmap(void* address, Bytes size) {
  device_->check_process("unmap");
  auto edit = table_.unmap(address, size);
  finish();
  const Address at = address_of(address);
  device_->run("unmap", at, size, [&] { return api().unmap(at, size); });
  edit.done();
}

void DeviceDriver::zero(void* address, Bytes size) {
  device_->check_process("zero");
  table_.check_accessible("zero", address, size);
  const Address at = address_of(address);
  device_->run("zero", at, size, [&] { return api().zero(at, size, stream_); });
  ++zeroings_;
}

void DeviceDriver::finish() {
  device_->check_process("finish");
  const std::uint64_t begun = zeroings_;
  std::uint64_t known = finished_;
  if (known >= begun) return;
  const Device::Visit visit(*device_);
  // A zeroing that hangs must never meet an unmap: there is no way on from there.
  if (!events_->record(stream_)->wait(kZeroDeadline))
    device_->lose(text("zeroing memory did not end within ", kZeroDeadline.count(), " s"));
  while (known < begun && !finished_.compare_exchange_weak(known, begun)) {
  }
}

std::shared_ptr<Fence> DeviceDriver::fence(std::uintptr_t stream) {
  device_->check_process("fence");
  return events_->record(stream);
}

Bytes DeviceDriver::free_bytes() {
  Bytes free = 0;
  device_->run("free_bytes", 0, 0, [&] { return api().free_bytes(free); });
  return free;
}

Bytes DeviceDriver::held_bytes() {
  device_->check_process("held_bytes");
  return held_;
}

}  // namespace kvcached::vmm
