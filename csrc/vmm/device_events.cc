#include "vmm/device_events.h"

namespace kvcached::vmm {

// Holds an event until it has passed or the fence goes. (Recording an event anew is allowed at any
// time.)
class DeviceFence final : public Fence {
 public:
  DeviceFence(std::shared_ptr<DeviceEvents> events, std::uintptr_t event, std::uintptr_t stream)
      : events_(std::move(events)), event_(event), stream_(stream) {}
  ~DeviceFence() override {
    if (!passed_) events_->give(event_);
  }

  bool passed() override {
    const std::lock_guard lock(mutex_);
    if (passed_) return true;
    Device& device = *events_->device_;
    passed_ = device.run("fence", 0, 0, [&] { return device.api().query(event_); });
    if (passed_) events_->give(event_);
    return passed_;
  }

  std::string describe() const override {
    return text("work queued on stream ", hex(stream_), " of ", events_->device_->name());
  }

 private:
  const std::shared_ptr<DeviceEvents> events_;
  const std::uintptr_t event_, stream_;
  std::mutex mutex_;  // held across a query, which does not wait
  bool passed_ = false;
};

DeviceEvents::~DeviceEvents() {
  for (const std::uintptr_t event : idle_) {
    try {
      device_->run("end", 0, 0, [&] { return device_->api().destroy_event(event); });
    } catch (const DriverError&) {
      return;  // lost, exiting, or another process: all events go with the context
    }
  }
}

std::uintptr_t DeviceEvents::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const std::uintptr_t event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  std::uintptr_t event = 0;
  device_->run("fence", 0, 0, [&] { return device_->api().create_event(event); });
  return event;
}

void DeviceEvents::give(std::uintptr_t event) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(event);
}

std::shared_ptr<Fence> DeviceEvents::record(std::uintptr_t stream) {
  const Device::Visit visit(*device_);
  const std::uintptr_t event = take();
  try {
    device_->run("fence", 0, 0, [&] { return device_->api().record(event, stream); });
    return std::make_shared<DeviceFence>(shared_from_this(), event, stream);
  } catch (...) {
    give(event);
    throw;
  }
}

}  // namespace kvcached::vmm
