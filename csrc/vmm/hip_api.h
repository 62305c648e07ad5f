// The HIP runtime API behind the device driver's interface. Where it differs from CUDA's driver
// API:
//
//   contexts       none; a thread has a current device, 0 at first. A visit is three calls, five
//                  where another device is current.
//   errors         a failed call leaves its status behind in the thread, where the engine would
//                  find it: it is taken back at once, by one call more.
//   capture mode   the same call
//   UUID           16 letters on most devices, not 16 bytes; none on some
#pragma once

#include <string>

#include "vmm/device_api.h"
#include "vmm/hip_library.h"

namespace kvcached::vmm {

class HipApi final : public DeviceApi {
 public:
  HipApi(int device, const std::string& library);  // see make_hip_driver

  std::string name() const override { return "hip"; }
  std::string key() const override { return key_; }
  int dlpack_device_type() const override;
  int device() const override { return device_; }
  Bytes granularity() const override { return granularity_; }
  Outcome outcome(Status status) const override;
  std::string describe(Status status) const override;

  Status enter(ThreadState& before) override;
  void leave(const ThreadState& before) override;
  Status adopt() override;
  void close() override {}

  Status reserve(Address& base, Bytes size) override;
  Status unreserve(Address base, Bytes size) override;
  Status create(NativeHandle& handle, Bytes size) override;
  Status release(NativeHandle handle) override;
  Status map(Address address, Bytes size, NativeHandle handle) override;
  Status set_access(Address address, Bytes size) override;
  Status unmap(Address address, Bytes size) override;
  Status free_bytes(Bytes& free) override;
  Status create_stream(std::uintptr_t& stream) override;
  Status destroy_stream(std::uintptr_t stream) override;
  Status zero(Address address, Bytes size, std::uintptr_t stream) override;
  Status create_event(std::uintptr_t& event) override;
  Status destroy_event(std::uintptr_t event) override;
  Status record(std::uintptr_t event, std::uintptr_t stream) override;
  Status query(std::uintptr_t event) override;

 private:
  Status taken_back(Status status) const;  // the same status, no longer the thread's last error
  void start(const char* call, Status status) const;  // DeviceUnavailable unless it is 0
  void find_device();
  void ask_granularity();
  hip::AllocationProp memory_here() const;

  const int device_;
  const hip::Library hip_;
  std::string key_;
  Bytes granularity_ = 0;
};

}  // namespace kvcached::vmm
