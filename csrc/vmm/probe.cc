#include "vmm/probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace kvcached::vmm {
namespace {

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) fail("pipe2");
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  bool takes_byte_at(std::uintptr_t address) {
    while (::write(ends_[1], reinterpret_cast<const void*>(address), 1) != 1) {
      if (errno == EFAULT) return false;
      if (errno != EINTR) fail("write");
    }
    char byte;
    while (::read(ends_[0], &byte, 1) != 1) {
      if (errno != EINTR) fail("read");
    }
    return true;
  }

 private:
  [[noreturn]] static void fail(const char* call) {
    throw std::system_error(errno, std::generic_category(), call);
  }
  int ends_[2];
};

}  // namespace

std::uint64_t readable_bytes(std::uintptr_t address, std::uint64_t size) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t end = address + size;
  Pipe pipe;
  std::uint64_t readable = 0;
  while (address < end) {
    const std::uintptr_t next = std::min(end, (address / page + 1) * page);
    if (pipe.takes_byte_at(address)) readable += next - address;
    address = next;
  }
  return readable;
}

}  // namespace kvcached::vmm
