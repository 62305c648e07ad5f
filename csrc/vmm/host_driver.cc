#include "vmm/host_driver.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "vmm/dlpack.h"
#include "vmm/host_ranges.h"
#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
std::uintptr_t address_of(void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::string hex(std::uintptr_t address) { return text("0x", std::hex, address); }

// Does nothing for no error (0).
void check(int error, const char* call, std::uintptr_t address, Bytes size) {
  if (error == 0) return;
  std::string why = std::strerror(error);
  if (error == ENOMEM) {
    why +=
        "; most often the process has as many mappings as vm.max_map_count allows (65530 by"
        " default): raise that sysctl or use larger pages";
  }
  throw DriverError(
      text("host ", call, " of ", size, " bytes at ", hex(address), " failed: ", why));
}

Bytes checked_granularity(Bytes granularity) {
  const Bytes page = machine_page_size();
  if (granularity == 0) return page;
  if ((granularity & (granularity - 1)) != 0 || granularity < page ||
      granularity > MemoryFile::kLargest) {
    throw InvalidArgument(text("host driver: granularity ", granularity,
                               " is not a power of two from the machine's page size, ", page,
                               ", up; pass 0 for that page size"));
  }
  return granularity;
}

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

std::shared_ptr<Driver> make_host_driver(Bytes granularity) {
  return std::make_shared<HostDriver>(granularity);
}

HostDriver::HostDriver(Bytes granularity)
    : granularity_(checked_granularity(granularity)), pid_(::getpid()) {}

HostDriver::~HostDriver() {
  if (::getpid() != pid_) return;
  for (const auto& [base, size] : reserved_) unreserve_range(base, size);
}

int HostDriver::dlpack_device_type() const { return kDLCPU; }

void HostDriver::check_process(const char* call) const {
  if (const pid_t now = ::getpid(); now != pid_) {
    throw InvalidArgument(text("host ", call, ": this driver belongs to process ", pid_,
                               ", this is process ", now, "; make a driver after the fork"));
  }
}

void HostDriver::check_multiple(const char* call, const char* what, Bytes value) const {
  if (value % granularity_ != 0 || value == 0 || value > MemoryFile::kLargest) {
    throw InvalidArgument(text("host ", call, ": ", what, " ", value,
                               " is not a positive multiple of the granularity ", granularity_));
  }
}

void* HostDriver::reserve(Bytes size) {
  check_process("reserve");
  check_multiple("reserve", "size", size);
  Address base = 0;
  check(reserve_range(size, granularity_, base), "reserve", 0, size);
  try {
    const std::lock_guard lock(mutex_);
    reserved_.emplace(base, size);
  } catch (...) {
    unreserve_range(base, size);
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
  check(unreserve_range(address, size), "unreserve", address, size);
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
  const int error = file_.fill(offset, size);
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
  if (size > MemoryFile::kLargest - space_.end()) {
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
  const int error = file_.punch(allocation.offset, allocation.size);
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
  if (const int error = lay_file(at, handle.size, file_.fd(), allocation.offset); error != 0) {
    mappings_.erase(entry);
    check(error, "map", at, handle.size);
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
    const int error = set_range_access(start, mapping.size, true);
    mapping.accessible = error == 0;
    if (error == 0) continue;
    while (it != changed.begin()) {
      auto& [undo, before] = **--it;
      set_range_access(undo, before.size, false);
      before.accessible = false;
    }
    check(error, "set_access", at, size);
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
  check(hide_range(at, size), "unmap", at, size);
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
  return file_.held();
}

}  // namespace kvcached::vmm
