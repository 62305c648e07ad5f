// A file in memory (memfd) whose ranges take and give back physical memory. A forked child does not
// inherit it.
#pragma once

#include "vmm/driver.h"
#include "vmm/fork.h"

namespace kvcached::vmm {

class MemoryFile {
 public:
  // Offsets and sizes below this fit the kernel's signed 64-bit numbers, sums included.
  static const Bytes kLargest;

  MemoryFile();  // DriverError
  int fd() const { return fd_.get(); }
  // Takes memory for a range now, or gives it back; 0 or errno, and then nothing has changed. A
  // range that was given back reads as zero.
  int fill(Bytes offset, Bytes size) const;
  int punch(Bytes offset, Bytes size) const;
  Bytes held() const;  // as the kernel counts it; DriverError

 private:
  const ForkClosedFd fd_;
};

}  // namespace kvcached::vmm
