#include "vmm/host_driver.h"

#include <unistd.h>

#include <cstring>

#include "vmm/dlpack.h"
#include "vmm/host_ranges.h"
#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

// Does nothing for no error (0).
void check(int error, const char* call, Address address, Bytes size) {
  if (error == 0) return;
  const std::string what = text("host ", call, " of ", size, " bytes at ", hex(address),
                                " failed: ", std::strerror(error));
  if (error != ENOMEM) throw DriverError(what);
  throw HostLimit(what +
                  "; most often the process has as many mappings as vm.max_map_count allows (65530"
                  " by default): raise that sysctl or use larger pages");
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

}  // namespace

std::shared_ptr<Driver> make_host_driver(Bytes granularity) {
  return std::make_shared<HostDriver>(granularity);
}

HostDriver::HostDriver(Bytes granularity)
    : granularity_(checked_granularity(granularity)),
      table_("host", granularity_, MemoryFile::kLargest) {}

HostDriver::~HostDriver() {
  if (!process_.is_here()) return;
  for (const auto& [base, size] : table_.ranges()) unreserve_range(base, size);
}

int HostDriver::dlpack_device_type() const { return kDLCPU; }

void HostDriver::check_process(const char* call) const {
  if (!process_.is_here()) {
    throw InvalidArgument(text("host ", call, ": this driver belongs to process ", process_.pid(),
                               ", this is process ", ::getpid(), "; make a driver after the fork"));
  }
}

void* HostDriver::reserve(Bytes size) {
  check_process("reserve");
  table_.check_multiple("reserve", "size", size);
  Address base = 0;
  check(reserve_range(size, granularity_, base), "reserve", 0, size);
  try {
    table_.add_range(base, size);
  } catch (...) {
    unreserve_range(base, size);
    throw;
  }
  return pointer(base);
}

void HostDriver::unreserve(void* base, Bytes size) {
  check_process("unreserve");
  auto range = table_.remove_range(base, size);
  check(unreserve_range(address_of(base), size), "unreserve", address_of(base), size);
  range.done();
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

Bytes HostDriver::take_space(Bytes size) {
  const std::lock_guard lock(mutex_);
  if (size > MemoryFile::kLargest - space_.end()) {
    throw OutOfMemory(text("host create: ", size, " bytes are more than a file can hold"));
  }
  return space_.take(size);
}

void HostDriver::give_space(Bytes offset, Bytes size) {
  const std::lock_guard lock(mutex_);
  space_.give(offset, size);
}

Handle HostDriver::create(Bytes size) {
  check_process("create");
  table_.check_multiple("create", "size", size);
  const Bytes offset = take_space(size);
  try {
    fill(offset, size);
    return table_.add_handle(offset, size);
  } catch (...) {
    give_space(offset, size);
    throw;
  }
}

void HostDriver::release(Handle handle) {
  check_process("release");
  auto removal = table_.remove_handle(handle);
  const Bytes offset = removal.value().native;
  if (const int error = file_.punch(offset, handle.size); error != 0) {
    throw DriverError(
        text("host release: giving back ", handle.size, " bytes failed: ", std::strerror(error)));
  }
  removal.done();
  give_space(offset, handle.size);
}

void HostDriver::map(void* address, Handle handle) {
  check_process("map");
  auto edit = table_.map(address, handle);
  const Address at = address_of(address);
  check(lay_file(at, handle.size, file_.fd(), edit.native()), "map", at, handle.size);
  edit.done();
}

void HostDriver::set_access(void* address, Bytes size) {
  check_process("set_access");
  auto edit = table_.set_access(address, size);
  const auto& shut = edit.shut();
  for (auto it = shut.begin(); it != shut.end(); ++it) {
    const int error = set_range_access(it->first, it->second, true);
    if (error == 0) continue;
    while (it != shut.begin()) {
      --it;
      set_range_access(it->first, it->second, false);
    }
    check(error, "set_access", address_of(address), size);
  }
  edit.done();
}

void HostDriver::unmap(void* address, Bytes size) {
  check_process("unmap");
  auto edit = table_.unmap(address, size);
  check(hide_range(address_of(address), size), "unmap", address_of(address), size);
  edit.done();
}

void HostDriver::zero(void* address, Bytes size) {
  check_process("zero");
  table_.check_accessible("zero", address, size);
  std::memset(address, 0, size);
}

std::shared_ptr<Fence> HostDriver::fence(std::uintptr_t /*stream*/) {
  check_process("fence");
  return passed_fence();
}

Bytes HostDriver::held_bytes() {
  check_process("held_bytes");
  return file_.held();
}

}  // namespace kvcached::vmm
