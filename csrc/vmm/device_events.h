// Events of a device, used again and again: in steady state a fence creates none.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "vmm/device.h"

namespace kvcached::vmm {

class DeviceEvents : public std::enable_shared_from_this<DeviceEvents> {
 public:
  explicit DeviceEvents(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~DeviceEvents();  // no fence is left: each holds it
  DeviceEvents(const DeviceEvents&) = delete;
  DeviceEvents& operator=(const DeviceEvents&) = delete;

  // Behind all work queued so far on the stream: one call of the library, two where no event is at
  // hand. The fence may outlive the driver.
  std::shared_ptr<Fence> record(std::uintptr_t stream);

 private:
  friend class DeviceFence;
  std::uintptr_t take();
  void give(std::uintptr_t event);  // makes no call

  const std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::vector<std::uintptr_t> idle_;  // under the lock
};

}  // namespace kvcached::vmm
