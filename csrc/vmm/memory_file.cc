#include "vmm/memory_file.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "vmm/text.h"

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3; machines with vm.memfd_noexec=2 demand it
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace kvcached::vmm {
namespace {

int open_memfd() {
  int fd = ::memfd_create("kvcached", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("kvcached", MFD_CLOEXEC);
  if (fd < 0) {
    throw DriverError(text("host driver: memfd_create failed: ", std::strerror(errno),
                           "; needs Linux 3.17 and a free file descriptor"));
  }
  return fd;
}

// fallocate on a memory file gives up, all undone, at any pending signal. A profiler's timer could
// so keep it from ever ending; with signals held back only SIGKILL interrupts it.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

int allocate_range(int fd, int mode, Bytes offset, Bytes size) {
  const SignalsHeld held;
  const int rc = ::fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(size));
  return rc == 0 ? 0 : errno;
}

}  // namespace

const Bytes MemoryFile::kLargest = static_cast<Bytes>(std::numeric_limits<off_t>::max()) / 2;

MemoryFile::MemoryFile() : fd_(open_memfd()) {}

int MemoryFile::fill(Bytes offset, Bytes size) const {
  return allocate_range(fd(), 0, offset, size);
}

int MemoryFile::punch(Bytes offset, Bytes size) const {
  return allocate_range(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size);
}

Bytes MemoryFile::held() const {
  struct stat status;
  if (::fstat(fd(), &status) != 0) {
    throw DriverError(text("host held_bytes: fstat failed: ", std::strerror(errno)));
  }
  constexpr Bytes kStatBlock = 512;  // what st_blocks counts in, whatever the file system
  return static_cast<Bytes>(status.st_blocks) * kStatBlock;
}

}  // namespace kvcached::vmm
