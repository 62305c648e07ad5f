// One reserved range of addresses and what is mapped in it; tensors are views of it by DLPack.
//
// Threads: all methods may be called from any thread; calls on the same offset must not overlap.
// No driver call is made under the arena's lock.
// Fork: an arena remembers its process. In another process every method with an effect raises
// InvalidArgument; destructor and release() do nothing; what only reads (base, size, mapped_bytes,
// quarantined_bytes) answers as it was at the fork.
// Lifetime: tensors keep the arena alive through a shared_ptr; the range is given back when the
// last of arena and tensors is gone. release() ends the arena's use: it unmaps and releases all
// memory at once and leaves the addresses reserved and inaccessible; nothing can be mapped
// afterwards.
// Quarantine: memory that the driver would neither hand over nor take back. The arena keeps its
// handle, its offsets stay taken, its bytes count as quarantined, not as mapped. A further
// release() tries again.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "vmm/driver.h"
#include "vmm/own_process.h"

struct DLManagedTensor;

namespace kvcached::vmm {

// A call failed and could not be undone: the arena has put the memory in quarantine.
class Quarantined : public DriverError {
 public:
  using DriverError::DriverError;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Reserves `size` bytes, rounded up to the driver's granularity. `destroy` is called in place of
  // delete, and calls it, when the last of arena and tensors goes: a caller whose threads hold a
  // lock at such times (the interpreter's) lets go of it there.
  static std::shared_ptr<Arena> reserve(
      std::shared_ptr<Driver> driver, Bytes size,
      void (*destroy)(Arena*) = [](Arena* arena) { delete arena; });
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* base() const { return base_; }
  Bytes size() const { return size_; }  // reserved
  // Each is one atomic read.
  Bytes mapped_bytes() const { return mapped_bytes_; }
  Bytes quarantined_bytes() const { return quarantined_bytes_; }
  Driver& driver() const { return *driver_; }

  // Maps `handle` at `offset`, makes it accessible and, unless the driver's memory is fresh zeros
  // and `fresh` says that it was never written, begins to zero it: see Driver::finish(), which is
  // the caller's to call. All or nothing: on an error the range is
  // as before and the handle still belongs to the caller; on success it is the arena's. Only
  // Quarantined differs: the handle is the arena's and the offsets are lost.
  void map(Bytes offset, Handle handle, bool fresh);
  // Unmaps what was mapped at `offset` and returns its handle, which is now the caller's. On an
  // error it is still mapped.
  Handle unmap(Bytes offset);
  // Begins to write zeros over any bytes of mapped memory; see Driver::finish().
  void zero(Bytes offset, Bytes size);
  bool is_mapped(Bytes offset) const;  // whether a mapping starts at or covers `offset`
  // Goes on after errors; what the driver would not let go is in quarantine then. Never throws.
  void release() noexcept;

  // One-dimensional int8 tensor over [offset, offset + size), size exact and not 0, mapped or not,
  // as a DLPack capsule payload. The deleter holds a shared_ptr to the arena, never a Python
  // object, and may run on any thread, without the interpreter lock, also at exit.
  DLManagedTensor* to_dlpack(Bytes offset, Bytes size);
  // What to_dlpack() would refuse, refused now.
  void check_tensor(Bytes offset, Bytes size) const;

 private:
  enum class State {
    kBusy,  // a call is under way
    kMapped,
    kQuarantined,
  };
  struct Entry {
    Handle handle;
    State state;
    bool tied;  // the driver has it mapped here
  };
  using Entries = std::map<Bytes, Entry>;  // by offset, never overlapping

  Arena(std::shared_ptr<Driver> driver, void* base, Bytes size);
  void check_process(const char* call) const;
  void check_range(const char* call, Bytes offset, Bytes size) const;
  void* address(Bytes offset) const { return static_cast<char*>(base_) + offset; }
  Entries::iterator claim(Bytes offset, Handle handle);
  void tie(Entries::iterator entry, bool fresh);
  void untie(Entries::iterator entry);
  void let_go(Entries::iterator entry, State before);

  const std::shared_ptr<Driver> driver_;
  void* const base_;
  const Bytes size_;
  const OwnProcess process_;
  std::atomic<Bytes> mapped_bytes_{0};
  std::atomic<Bytes> quarantined_bytes_{0};
  mutable std::mutex mutex_;  // guards what follows; an entry that is busy is its caller's
  Entries entries_;
  bool closed_ = false;
};

}  // namespace kvcached::vmm
