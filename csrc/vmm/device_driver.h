// The driver over a device's memory, of any vendor whose library has calls for virtual memory.
//
// What a call costs, in calls of the library, in a thread that adopt_thread() was called in:
//
//   create, release, map, set_access, unmap    1 each
//   zero                                       1
//   finish, also where unmap needs it          1, and one each time it looks whether all is done;
//                                              0 if nothing was begun since another one ended
//   fence                                      1; 2 while the number of fences alive still grows
//   Fence::passed                              1, until it has passed
//   reserve, unreserve, free_bytes             1 each
//   granularity, held_bytes, all that is refused as InvalidArgument    0
//
// In any other thread the thread's state is looked at, set and put back around each: for CUDA three
// calls more, five where another context is current; for HIP three, or five. None of them waits for
// the device but finish().
// The table is the only truth about what is reserved, created and mapped.
#pragma once

#include <atomic>
#include <memory>

#include "vmm/device.h"
#include "vmm/device_events.h"
#include "vmm/range_table.h"

namespace kvcached::vmm {

class DeviceDriver final : public Driver {
 public:
  explicit DeviceDriver(std::unique_ptr<DeviceApi> api);
  // Ends in silence where the device is lost or the process is exiting.
  ~DeviceDriver() override;

  // Of the device, for the budget's record.
  std::string device_key() const { return device_->api().key(); }

  std::string name() const override { return device_->api().name(); }
  Bytes granularity() const override { return granularity_; }
  int dlpack_device_type() const override { return device_->api().dlpack_device_type(); }
  int dlpack_device_id() const override { return device_->api().device(); }

  void* reserve(Bytes size) override;
  void unreserve(void* base, Bytes size) override;
  Handle create(Bytes size) override;
  void release(Handle handle) override;
  bool creates_zeroed() const override { return false; }
  void map(void* address, Handle handle) override;
  void set_access(void* address, Bytes size) override;
  void unmap(void* address, Bytes size) override;
  // On a stream of its own, beside whatever the device is doing and before what waits there.
  void zero(void* address, Bytes size) override;
  void finish() override;
  std::shared_ptr<Fence> fence(std::uintptr_t stream) override;
  void adopt_thread() override { device_->adopt_thread(); }
  void check_alive() const override { device_->check_alive(); }
  Bytes free_bytes() override;
  Bytes held_bytes() override;

 private:
  DeviceApi& api() const { return device_->api(); }
  void give_all_back();

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<DeviceEvents> events_;
  const Bytes granularity_;
  RangeTable table_;
  std::uintptr_t stream_ = 0;
  std::atomic<Bytes> held_{0};
  std::atomic<std::uint64_t> zeroings_{0}, finished_{0};  // begun, and of these known to be done
};

}  // namespace kvcached::vmm
