#include "vmm/host_driver.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "vmm/dlpack.h"
#include "vmm/text.h"

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3; machines with vm.memfd_noexec=2 demand it
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace kvcached::vmm {
namespace {

// File offsets and address arithmetic are signed 64-bit numbers in the kernel.
constexpr Bytes kLargest = static_cast<Bytes>(std::numeric_limits<off_t>::max()) / 2;

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

Bytes page_size() { return static_cast<Bytes>(::sysconf(_SC_PAGESIZE)); }

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
std::uintptr_t address_of(void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::string hex(std::uintptr_t address) { return text("0x", std::hex, address); }

[[noreturn]] void fail_mapping(const char* call, std::uintptr_t address, Bytes size, int error) {
  std::string why = std::strerror(error);
  if (error == ENOMEM) {
    why +=
        "; most often the process has as many mappings as vm.max_map_count allows (65530 by"
        " default): raise that sysctl or use larger pages";
  }
  throw DriverError(
      text("host ", call, " of ", size, " bytes at ", hex(address), " failed: ", why));
}

int open_memfd() {
  int fd = ::memfd_create("kvcached", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("kvcached", MFD_CLOEXEC);
  if (fd < 0) {
    throw DriverError(text("host driver: memfd_create failed: ", std::strerror(errno),
                           "; needs Linux 3.17 and a free file descriptor"));
  }
  return fd;
}

Bytes checked_granularity(Bytes granularity) {
  if (granularity == 0) return page_size();
  if ((granularity & (granularity - 1)) != 0 || granularity < page_size() ||
      granularity > kLargest) {
    throw InvalidArgument(text("host driver: granularity ", granularity,
                               " is not a power of two from the machine's page size, ", page_size(),
                               ", up; pass 0 for that page size"));
  }
  return granularity;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
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

// Makes a mapped range inaccessible again, reserved as before. Where the process is past its limit
// of mappings the kernel refuses any mmap, even one that leaves fewer; taking the access away needs
// none. The file then stays behind the range, out of reach, until the next map() or unreserve().
int hide(void* address, Bytes size) {
  if (::mmap(address, size, PROT_NONE, kReserved | MAP_FIXED, -1, 0) != MAP_FAILED) return 0;
  const int error = errno;
  return error == ENOMEM && ::mprotect(address, size, PROT_NONE) == 0 ? 0 : error;
}

int allocate_range(int fd, int mode, Bytes offset, Bytes size) {
  const SignalsHeld held;
  const int rc = ::fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(size));
  return rc == 0 ? 0 : errno;
}

}  // namespace

std::shared_ptr<Driver> make_host_driver(Bytes granularity) {
  return std::make_shared<HostDriver>(granularity);
}

HostDriver::HostDriver(Bytes granularity)
    : granularity_(checked_granularity(granularity)), pid_(::getpid()), memfd_(open_memfd()) {}

HostDriver::~HostDriver() {
  if (::getpid() != pid_) return;
  for (const auto& [base, size] : reserved_) ::munmap(pointer(base), size);
}

int HostDriver::dlpack_device_type() const { return kDLCPU; }

void HostDriver::check_process(const char* call) const {
  if (const pid_t now = ::getpid(); now != pid_) {
    throw InvalidArgument(text("host ", call, ": this driver belongs to process ", pid_,
                               ", this is process ", now, "; make a driver after the fork"));
  }
}

void HostDriver::check_multiple(const char* call, const char* what, Bytes value) const {
  if (value % granularity_ != 0 || value == 0 || value > kLargest) {
    throw InvalidArgument(text("host ", call, ": ", what, " ", value,
                               " is not a positive multiple of the granularity ", granularity_));
  }
}

void* HostDriver::reserve(Bytes size) {
  check_process("reserve");
  check_multiple("reserve", "size", size);
  const Bytes slack = granularity_ > page_size() ? granularity_ : 0;
  void* got = ::mmap(nullptr, size + slack, PROT_NONE, kReserved, -1, 0);
  if (got == MAP_FAILED) fail_mapping("reserve", 0, size, errno);
  const Address start = address_of(got);
  const Address base = (start + granularity_ - 1) & ~(granularity_ - 1);
  if (base > start) ::munmap(pointer(start), base - start);
  if (const Bytes tail = start + slack - base; tail > 0) ::munmap(pointer(base + size), tail);
  try {
    const std::lock_guard lock(mutex_);
    reserved_.emplace(base, size);
  } catch (...) {
    ::munmap(pointer(base), size);
    throw;
  }
  return pointer(base);
}

void HostDriver::unreserve(void* base, Bytes size) {
  check_process("unreserve");
  const Address address = address_of(base);
  const std::lock_guard lock(mutex_);
  const auto found = reserved_.find(address);
  if (found == reserved_.end() || found->second != size) {
    throw InvalidArgument(text("host unreserve: ", size, " bytes at ", hex(address),
                               " are not a whole reserved range"));
  }
  if (overlaps_mapping(address, size)) {
    throw InvalidArgument(text("host unreserve: the range at ", hex(address),
                               " has something mapped in it; unmap it first"));
  }
  if (::munmap(base, size) != 0) fail_mapping("unreserve", address, size, errno);
  reserved_.erase(found);
}

void HostDriver::fill(Bytes offset, Bytes size) {
  // The kernel's own answer to an allocation that cannot fit is its out-of-memory killer.
  if (const Bytes free = free_bytes(); size > free) {
    throw OutOfMemory(text("host create: ", size, " bytes asked for, ", free,
                           " available on this machine (MemAvailable and cgroup limits), ",
                           held_bytes(),
                           " held by this driver; lower the KV-cache limit or free"
                           " memory"));
  }
  const int error = allocate_range(memfd_.get(), 0, offset, size);
  if (error == 0) return;
  const std::string what = text("host create: ", size, " bytes asked for, ", held_bytes(),
                                " held by this driver, the kernel refused: ", std::strerror(error));
  if (error == ENOMEM || error == ENOSPC) throw OutOfMemory(what);
  throw DriverError(what);
}

Handle HostDriver::create(Bytes size) {
  check_process("create");
  check_multiple("create", "size", size);
  const Handle handle{next_id(), size};
  std::unique_lock lock(mutex_);
  if (size > kLargest - space_.end()) {
    throw OutOfMemory(text("host create: ", size, " bytes are more than a file can hold"));
  }
  Allocation& entry = allocations_[handle.id];  // nobody knows the id yet
  entry = Allocation{space_.take(size), size, 0};
  const Bytes offset = entry.offset;
  lock.unlock();
  try {
    fill(offset, size);
  } catch (...) {
    lock.lock();
    allocations_.erase(handle.id);
    space_.give(offset, size);
    throw;
  }
  return handle;
}

HostDriver::Allocation& HostDriver::find(const char* call, Handle handle) {
  const auto found = allocations_.find(handle.id);
  if (found == allocations_.end() || found->second.size != handle.size) {
    throw InvalidArgument(text("host ", call, ": handle ", handle.id, " of ", handle.size,
                               " bytes is not one that this driver created and still holds"));
  }
  return found->second;
}

void HostDriver::release(Handle handle) {
  check_process("release");
  std::unique_lock lock(mutex_);
  if (const Address at = find("release", handle).mapped_at; at != 0) {
    throw InvalidArgument(
        text("host release: handle ", handle.id, " is mapped at ", hex(at), "; unmap it first"));
  }
  auto node = allocations_.extract(handle.id);  // nobody else can map or release it now
  const Allocation allocation = node.mapped();
  lock.unlock();
  const int error = allocate_range(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                   allocation.offset, allocation.size);
  lock.lock();
  if (error != 0) {
    allocations_.insert(std::move(node));
    throw DriverError(
        text("host release: giving back ", handle.size, " bytes failed: ", std::strerror(error)));
  }
  space_.give(allocation.offset, allocation.size);
}

HostDriver::Mappings::iterator HostDriver::mapping_over(Address address) {
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return mappings_.end();
  const auto before = std::prev(after);
  return address - before->first < before->second.size ? before : mappings_.end();
}

bool HostDriver::overlaps_mapping(Address address, Bytes size) {
  if (mapping_over(address) != mappings_.end()) return true;
  const auto next = mappings_.lower_bound(address);
  return next != mappings_.end() && next->first - address < size;
}

void HostDriver::check_reserved(Address address, Bytes size) {
  const auto after = reserved_.upper_bound(address);
  if (after != reserved_.begin()) {
    const auto& [base, length] = *std::prev(after);
    const Bytes skipped = address - base;
    if (skipped < length && size <= length - skipped) return;
  }
  throw InvalidArgument(text("host map: ", size, " bytes at ", hex(address),
                             " do not lie in one range that this driver reserved"));
}

void HostDriver::map(void* address, Handle handle) {
  check_process("map");
  const Address at = address_of(address);
  check_multiple("map", "address", at);
  const std::lock_guard lock(mutex_);
  Allocation& allocation = find("map", handle);
  if (allocation.mapped_at != 0) {
    throw InvalidArgument(text("host map: handle ", handle.id, " is mapped already, at ",
                               hex(allocation.mapped_at), "; a handle has one address"));
  }
  check_reserved(at, handle.size);
  if (overlaps_mapping(at, handle.size)) {
    throw InvalidArgument(text("host map: something is mapped already in the ", handle.size,
                               " bytes at ", hex(at), "; unmap it first"));
  }
  const auto entry = mappings_.emplace(at, Mapping{handle.id, handle.size, false}).first;
  const auto no_fork = hold_forks();  // else a child might get the mapping before MADV_DONTFORK
  if (::mmap(address, handle.size, PROT_NONE, MAP_SHARED | MAP_FIXED, memfd_.get(),
             static_cast<off_t>(allocation.offset)) == MAP_FAILED) {
    const int error = errno;
    mappings_.erase(entry);
    fail_mapping("map", at, handle.size, error);
  }
  if (::madvise(address, handle.size, MADV_DONTFORK) != 0) {
    const int error = errno;
    hide(address, handle.size);
    mappings_.erase(entry);
    fail_mapping("map", at, handle.size, error);
  }
  allocation.mapped_at = at;
}

void HostDriver::set_access(void* address, Bytes size) {
  check_process("set_access");
  const Address at = address_of(address);
  check_multiple("set_access", "address", at);
  check_multiple("set_access", "size", size);
  const std::lock_guard lock(mutex_);
  std::vector<Mappings::iterator> changed;
  Bytes covered = 0;
  while (covered < size) {
    const auto mapping = mappings_.find(at + covered);
    if (mapping == mappings_.end() || mapping->second.size > size - covered) {
      throw InvalidArgument(text("host set_access: ", size, " bytes at ", hex(at),
                                 " are not a run of whole mappings; see what is at ",
                                 hex(at + covered)));
    }
    if (!mapping->second.accessible) changed.push_back(mapping);
    covered += mapping->second.size;
  }
  for (auto it = changed.begin(); it != changed.end(); ++it) {
    auto& [start, mapping] = **it;
    if (::mprotect(pointer(start), mapping.size, PROT_READ | PROT_WRITE) == 0) {
      mapping.accessible = true;
      continue;
    }
    const int error = errno;
    while (it != changed.begin()) {
      auto& [undo, before] = **--it;
      ::mprotect(pointer(undo), before.size, PROT_NONE);
      before.accessible = false;
    }
    fail_mapping("set_access", at, size, error);
  }
}

void HostDriver::unmap(void* address, Bytes size) {
  check_process("unmap");
  const Address at = address_of(address);
  const std::lock_guard lock(mutex_);
  const auto mapping = mappings_.find(at);
  if (mapping == mappings_.end() || mapping->second.size != size) {
    throw InvalidArgument(
        text("host unmap: ", size, " bytes at ", hex(at), " are not what one map() tied"));
  }
  if (const int error = hide(address, size); error != 0) fail_mapping("unmap", at, size, error);
  allocations_.at(mapping->second.handle).mapped_at = 0;
  mappings_.erase(mapping);
}

void HostDriver::zero(void* address, Bytes size) {
  check_process("zero");
  const Address at = address_of(address);
  std::unique_lock lock(mutex_);
  Bytes covered = 0;
  while (size == 0 || covered < size) {
    const auto mapping = mapping_over(at + covered);
    if (size == 0 || mapping == mappings_.end() || !mapping->second.accessible) {
      throw InvalidArgument(text("host zero: ", size, " bytes at ", hex(at),
                                 " are not all mapped and accessible, or none"));
    }
    covered = mapping->first + mapping->second.size - at;
  }
  lock.unlock();
  std::memset(address, 0, size);
}

Bytes HostDriver::held_bytes() {
  check_process("held_bytes");
  struct stat status;
  if (::fstat(memfd_.get(), &status) != 0) {
    throw DriverError(text("host held_bytes: fstat failed: ", std::strerror(errno)));
  }
  constexpr Bytes kStatBlock = 512;  // what st_blocks counts in, whatever the file system
  return static_cast<Bytes>(status.st_blocks) * kStatBlock;
}

}  // namespace kvcached::vmm
