// The driver over host memory. Addresses are reserved mmap ranges, physical memory is a range of
// one memfd a driver object, and map() lays the one over the other with MAP_FIXED.
//
// The table is the only truth about what is reserved, created and mapped, and every call leaves it
// equal to what the kernel has. A handle's native number is its offset in the memfd.
// Fork: mappings are not inherited (an access in the child faults) and the memfd is closed in the
// child, so that a child can neither see nor keep its parent's memory.
#pragma once

#include <mutex>

#include "vmm/driver.h"
#include "vmm/file_space.h"
#include "vmm/machine_memory.h"
#include "vmm/memory_file.h"
#include "vmm/own_process.h"
#include "vmm/range_table.h"

namespace kvcached::vmm {

class HostDriver final : public Driver {
 public:
  explicit HostDriver(Bytes granularity);  // see make_host_driver
  ~HostDriver() override;

  std::string name() const override { return "host"; }
  Bytes granularity() const override { return granularity_; }
  int dlpack_device_type() const override;
  int dlpack_device_id() const override { return 0; }

  void* reserve(Bytes size) override;
  void unreserve(void* base, Bytes size) override;
  Handle create(Bytes size) override;
  void release(Handle handle) override;
  bool creates_zeroed() const override { return true; }
  void map(void* address, Handle handle) override;
  void set_access(void* address, Bytes size) override;
  void unmap(void* address, Bytes size) override;
  void zero(void* address, Bytes size) override;
  std::shared_ptr<Fence> fence(std::uintptr_t stream) override;
  // The smallest of MemAvailable and what the process's cgroups leave.
  Bytes free_bytes() override { return machine_.available(); }
  // Blocks of the memfd.
  Bytes held_bytes() override;

 private:
  void check_process(const char* call) const;
  Bytes take_space(Bytes size);
  void give_space(Bytes offset, Bytes size);
  void fill(Bytes offset, Bytes size);  // takes the memory; OutOfMemory

  const Bytes granularity_;
  const OwnProcess process_;
  const MachineMemory machine_;
  const MemoryFile file_;

  RangeTable table_;

  std::mutex mutex_;  // guards what follows
  FileSpace space_;
};

}  // namespace kvcached::vmm
