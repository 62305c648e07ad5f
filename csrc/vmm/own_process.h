// Telling a forked child from its parent without a system call: where those are slow, one for each
// use of a driver would cost as much as the driver's own call.
#pragma once

#include <sys/types.h>

namespace kvcached::vmm {

// The process that made it. A copy in a child that was forked since is not that process any more.
// fork() runs handlers; a child of vfork() or of a bare clone() must not use what it inherits.
class OwnProcess {
 public:
  OwnProcess();
  bool is_here() const;               // any thread
  pid_t pid() const { return pid_; }  // of the process that made it

 private:
  pid_t pid_;
  unsigned forks_;
};

}  // namespace kvcached::vmm
