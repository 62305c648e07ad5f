#include "vmm/host_ranges.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "vmm/fork.h"

namespace kvcached::vmm {
namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

Bytes machine_page_size() { return static_cast<Bytes>(::sysconf(_SC_PAGESIZE)); }

int reserve_range(Bytes size, Bytes alignment, std::uintptr_t& base) {
  const Bytes slack = alignment > machine_page_size() ? alignment : 0;
  void* const got = ::mmap(nullptr, size + slack, PROT_NONE, kReserved, -1, 0);
  if (got == MAP_FAILED) return errno;
  const auto start = reinterpret_cast<std::uintptr_t>(got);
  base = (start + alignment - 1) & ~(alignment - 1);
  if (base > start) ::munmap(got, base - start);
  if (const Bytes tail = start + slack - base; tail > 0) ::munmap(pointer(base + size), tail);
  return 0;
}

int unreserve_range(std::uintptr_t base, Bytes size) {
  return ::munmap(pointer(base), size) == 0 ? 0 : errno;
}

int lay_file(std::uintptr_t address, Bytes size, int fd, Bytes offset) {
  const auto no_fork = hold_forks();  // else a child might get the mapping before MADV_DONTFORK
  if (::mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(offset)) == MAP_FAILED)
    return errno;
  if (::madvise(pointer(address), size, MADV_DONTFORK) == 0) return 0;
  const int error = errno;
  hide_range(address, size);
  return error;
}

int set_range_access(std::uintptr_t address, Bytes size, bool accessible) {
  const int access = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  return ::mprotect(pointer(address), size, access) == 0 ? 0 : errno;
}

// Where the process is past its limit of mappings the kernel refuses any mmap, even one that leaves
// fewer; taking the access away needs none. The file then stays behind the range, out of reach,
// until the next lay_file() or unreserve_range().
int hide_range(std::uintptr_t address, Bytes size) {
  if (::mmap(pointer(address), size, PROT_NONE, kReserved | MAP_FIXED, -1, 0) != MAP_FAILED)
    return 0;
  const int error = errno;
  return error == ENOMEM && set_range_access(address, size, false) == 0 ? 0 : error;
}

}  // namespace kvcached::vmm
