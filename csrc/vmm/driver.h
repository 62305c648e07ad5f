// The contract of a memory driver: reserve addresses, create physical memory, tie one to the other.
//
// A driver knows nothing of blocks, pages or budgets. Every call is made without the interpreter
// lock and without any lock that its caller's other threads need. Calls on disjoint ranges and
// handles may run at the same time. All sizes are bytes, not 0 and multiples of `granularity()`,
// all addresses lie on such a multiple (but see zero); anything else is an InvalidArgument, before
// any effect. Fork: a driver remembers its process. In another one every method with an effect
// raises InvalidArgument and has none, and the destructor does nothing. Lifetime: the destructor
// gives back every range and all memory that is left; nobody may touch them then. (An Arena keeps
// its driver alive.) Errors, and what a caller must do about each: csrc/vmm/errors.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "vmm/errors.h"
#include "vmm/fence.h"

namespace kvcached::vmm {

using Bytes = std::uint64_t;

// One physical allocation: owned by the process that created it, tied to at most one address. Ids
// are never used twice in a process.
struct Handle {
  std::uint64_t id = 0;  // 0: none
  Bytes size = 0;
  explicit operator bool() const { return id != 0; }
};

class Driver {
 public:
  virtual ~Driver() = default;

  virtual std::string name() const = 0;
  // Smallest physical unit, a power of two.
  virtual Bytes granularity() const = 0;
  // DLPack device of tensors over this driver's ranges: (device type, device index).
  virtual int dlpack_device_type() const = 0;
  virtual int dlpack_device_id() const = 0;

  // A range of addresses without memory; any access to it faults.
  virtual void* reserve(Bytes size) = 0;
  // Gives a whole reserved range back. Nothing may be mapped in it.
  virtual void unreserve(void* base, Bytes size) = 0;

  // Takes physical memory now: a later map() does not fail for want of it. OutOfMemory where there
  // is too little.
  virtual Handle create(Bytes size) = 0;
  // Gives it back to the operating system or device before it returns. Must not be mapped.
  virtual void release(Handle handle) = 0;
  // Whether memory from create() reads as zero until it is written.
  virtual bool creates_zeroed() const = 0;

  // Ties a whole handle to [address, address + handle.size), which must be reserved and unmapped.
  virtual void map(void* address, Handle handle) = 0;
  // Makes a range of one or more whole mappings readable and writable. (Between map and this, any
  // access faults.)
  virtual void set_access(void* address, Bytes size) = 0;
  // Unties a range that one map() tied; afterwards any access to it faults. The handle lives on.
  // Waits for zeros on their way first: nobody else knows of them.
  virtual void unmap(void* address, Bytes size) = 0;
  // Begins to write zeros to a mapped, accessible range. They are there, for a reader on any
  // stream, when a finish() that is called after it has returned. Any bytes will do, whole granules
  // or not: a page may share a granule with a neighbour that is in use.
  virtual void zero(void* address, Bytes size) = 0;
  // Waits for all that zero() has begun, in any thread. DeviceLost if it does not end.
  virtual void finish() {}

  // A fence behind all work that is queued so far on the device's stream of that native handle (0:
  // its default stream), which must not be capturing a graph.
  virtual std::shared_ptr<Fence> fence(std::uintptr_t stream) = 0;

  // The calling thread makes no calls of its own to this kind of device for the rest of its life:
  // the driver may leave the thread's state set between calls, and need not look at it in each.
  virtual void adopt_thread() {}
  // DeviceLost once a call has found that the device is lost. Calls nothing.
  virtual void check_alive() const {}

  // Bytes of physical memory that the device or machine could still give out.
  virtual Bytes free_bytes() = 0;
  // Bytes that this driver object holds as the operating system or device counts them.
  virtual Bytes held_bytes() = 0;
};

// The embedded driver over host memory: reserved mmap ranges, physical memory in a memfd,
// MAP_FIXED over the range. `granularity` 0 means the machine's page size.
std::shared_ptr<Driver> make_host_driver(Bytes granularity = 0);

}  // namespace kvcached::vmm
