// The CUDA driver API behind the device driver's interface. Looks at the thread's context in each
// visit: three calls, five where ours is not the one that is current.
#pragma once

#include <string>

#include "vmm/cuda_library.h"
#include "vmm/device_api.h"

namespace kvcached::vmm {

class CudaApi final : public DeviceApi {
 public:
  CudaApi(int device, const std::string& library);  // see make_cuda_driver

  std::string name() const override { return "cuda"; }
  std::string key() const override { return key_; }
  int dlpack_device_type() const override;
  int device() const override { return index_; }
  Bytes granularity() const override { return granularity_; }
  Outcome outcome(Status status) const override;
  std::string describe(Status status) const override;

  Status enter(ThreadState& before) override;
  void leave(const ThreadState& before) override;
  Status adopt() override;
  void close() override;

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
  void start(const char* call, Status status) const;  // DeviceUnavailable unless it is 0
  void find_device();
  void ask_granularity();
  cuda::AllocationProp memory_here() const;

  const int index_;
  const cuda::Library cuda_;
  cuda::DeviceOrdinal device_ = 0;
  cuda::Context* context_ = nullptr;
  std::string key_;
  Bytes granularity_ = 0;
};

}  // namespace kvcached::vmm
