// What keeps a forked child from holding on to its parent's memory.
//
// A child that never calls exec inherits descriptors, close-on-exec or not. If it kept that of a
// memory file, the parent's death would give nothing back while the child lives.
#pragma once

#include <mutex>

#include "vmm/own_process.h"

namespace kvcached::vmm {

// A descriptor that fork() closes in the child. In the child the object is dead: get() is -1 there
// and the destructor does nothing.
class ForkClosedFd {
 public:
  explicit ForkClosedFd(int fd);  // takes ownership
  ~ForkClosedFd();
  ForkClosedFd(const ForkClosedFd&) = delete;
  ForkClosedFd& operator=(const ForkClosedFd&) = delete;
  int get() const;

 private:
  int fd_;
  const OwnProcess process_;
};

// While the lock is held, fork() in this process waits: for two system calls that a child must see
// both or none of. Innermost of all locks; hold it for microseconds.
std::unique_lock<std::mutex> hold_forks();

}  // namespace kvcached::vmm
