// How much memory this process could still get: the machine's, or less where a cgroup says so.
#pragma once

#include <string>
#include <vector>

#include "vmm/driver.h"

namespace kvcached::vmm {

class MachineMemory {
 public:
  // `proc` is where procfs is; tests pass a directory of their own. The cgroups that bind this
  // process (v2, else the memory controller of v1) are looked up once, here.
  explicit MachineMemory(const std::string& proc = "/proc");

  // The smallest of MemAvailable and, for each cgroup from the process's own up to the root of what
  // is visible, its limit - usage + inactive file cache, which the kernel drops before it fails an
  // allocation. (Loaded weights lie in that cache: without it a container that has just read a
  // model would look full.) DriverError where the machine does not say.
  Bytes available() const;

 private:
  struct Cgroup {
    std::string limit, usage, stat;  // paths of its files
    std::string cache_key;           // the line of `stat` that counts inactive file cache
  };
  void find_cgroups(const std::string& proc);

  std::string meminfo_;
  std::vector<Cgroup> cgroups_;
};

}  // namespace kvcached::vmm
