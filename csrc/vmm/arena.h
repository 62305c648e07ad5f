// One reserved range of addresses and what is mapped in it; tensors are views of it by DLPack.
//
// Threads: all methods may be called from any thread; calls on the same offset must not overlap.
// Fork: an arena remembers its process. In another process every method but the destructor raises
// InvalidArgument, and destructor and release() do nothing.
// Lifetime: tensors keep the arena alive through a shared_ptr; the range is given back when the
// last of arena and tensors is gone. release() unmaps and releases all memory at once, leaves the
// addresses reserved and inaccessible, and may be called twice.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <sys/types.h>

#include "vmm/driver.h"

struct DLManagedTensor;

namespace kvcached::vmm {

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Reserves `size` bytes, rounded up to the driver's granularity.
  static std::shared_ptr<Arena> reserve(std::shared_ptr<Driver> driver, Bytes size);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* base() const;
  Bytes size() const;                 // reserved
  Bytes mapped_bytes() const;         // mapped
  Driver& driver() const;

  // Maps `handle` at `offset`, makes it accessible and, unless the driver's memory is fresh zeros
  // and `fresh` says that it was never written, zeroes it. All or nothing: on an error the range is
  // as before and the handle still belongs to the caller. Takes ownership of the handle otherwise.
  void map(Bytes offset, Handle handle, bool fresh);
  // Unmaps what was mapped at `offset` and returns its handle, which is now the caller's.
  Handle unmap(Bytes offset);
  bool is_mapped(Bytes offset) const;  // whether a mapping starts at or covers `offset`
  void release();

  // One-dimensional int8 tensor over [offset, offset + size), size exact, as a DLPack capsule
  // payload. The deleter holds a shared_ptr to the arena, never a Python object, and may run on
  // any thread, without the interpreter lock, also at exit.
  DLManagedTensor* to_dlpack(Bytes offset, Bytes size);

 private:
  Arena(std::shared_ptr<Driver> driver, void* base, Bytes size);
  void check_process() const;

  std::shared_ptr<Driver> driver_;
  void* base_;
  Bytes size_;
  pid_t pid_;
  mutable std::mutex mutex_;
  std::unordered_map<Bytes, Handle> mapped_;  // offset -> handle
};

}  // namespace kvcached::vmm
