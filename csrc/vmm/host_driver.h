// The driver over host memory. Addresses are reserved mmap ranges, physical memory is a range of
// one memfd a driver object, and map() lays the one over the other with MAP_FIXED.
//
// The tables are the only truth about what is reserved, created and mapped, and every call leaves
// them equal to what the kernel has. One mutex guards them; filling, punching and zeroing run
// outside it.
// Fork: mappings are not inherited (an access in the child faults) and the memfd is closed in the
// child, so that a child can neither see nor keep its parent's memory.
#pragma once

#include <sys/types.h>

#include <map>
#include <mutex>
#include <unordered_map>

#include "vmm/driver.h"
#include "vmm/file_space.h"
#include "vmm/machine_memory.h"
#include "vmm/memory_file.h"

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
  // The smallest of MemAvailable and what the process's cgroups leave.
  Bytes free_bytes() override { return machine_.available(); }
  // Blocks of the memfd.
  Bytes held_bytes() override;

 private:
  using Address = std::uintptr_t;
  struct Allocation {
    Bytes offset = 0;  // in the memfd
    Bytes size = 0;
    Address mapped_at = 0;  // 0: nowhere
  };
  struct Mapping {
    std::uint64_t handle = 0;
    Bytes size = 0;
    bool accessible = false;
  };
  using Mappings = std::map<Address, Mapping>;

  void check_process(const char* call) const;
  void check_multiple(const char* call, const char* what, Bytes value) const;
  // These four want mutex_ held.
  Allocation& find(const char* call, Handle handle);
  Mappings::iterator mapping_over(Address address);  // that covers the address, or end()
  bool overlaps_mapping(Address address, Bytes size);
  void check_reserved(Address address, Bytes size);
  void fill(Bytes offset, Bytes size);  // takes the memory; OutOfMemory

  const Bytes granularity_;
  const pid_t pid_;
  const MachineMemory machine_;
  const MemoryFile file_;

  std::mutex mutex_;
  FileSpace space_;
  std::map<Address, Bytes> reserved_;
  std::unordered_map<std::uint64_t, Allocation> allocations_;
  Mappings mappings_;
};

}  // namespace kvcached::vmm
