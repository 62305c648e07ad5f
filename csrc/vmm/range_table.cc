#include "vmm/range_table.h"

#include <atomic>
#include <iterator>

namespace kvcached::vmm {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

RangeTable::RangeTable(std::string driver, Bytes granularity, Bytes largest)
    : driver_(std::move(driver)), granularity_(granularity), largest_(largest) {}

void RangeTable::check_multiple(const char* call, const char* what, Bytes value) const {
  if (value % granularity_ != 0 || value == 0 || value > largest_) {
    throw InvalidArgument(text(driver_, " ", call, ": ", what, " ", value,
                               " is not a positive multiple of the granularity ", granularity_));
  }
}

void RangeTable::add_range(Address base, Bytes size) {
  const std::lock_guard lock(mutex_);
  ranges_.emplace(base, size);
}

Handle RangeTable::add_handle(std::uint64_t native, Bytes size) {
  const Handle handle{next_id(), size};
  const std::lock_guard lock(mutex_);
  allocations_.emplace(handle.id, Allocation{native, size, 0});
  return handle;
}

RangeTable::Removal<RangeTable::Ranges> RangeTable::remove_range(void* base, Bytes size) {
  const Address address = address_of(base);
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second != size) {
    throw InvalidArgument(text(driver_, " unreserve: ", size, " bytes at ", hex(address),
                               " are not a whole reserved range"));
  }
  if (overlaps_mapping(address, size)) {
    throw InvalidArgument(text(driver_, " unreserve: the range at ", hex(address),
                               " has something mapped in it; unmap it first"));
  }
  return {*this, ranges_, ranges_.extract(found)};
}

RangeTable::Allocations::iterator RangeTable::find(const char* call, Handle handle) {
  const auto found = allocations_.find(handle.id);
  if (found == allocations_.end() || found->second.size != handle.size) {
    throw InvalidArgument(text(driver_, " ", call, ": handle ", handle.id, " of ", handle.size,
                               " bytes is not one that this driver created and still holds"));
  }
  return found;
}

RangeTable::Removal<RangeTable::Allocations> RangeTable::remove_handle(Handle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = find("release", handle);
  if (const Address at = found->second.mapped_at; at != 0) {
    throw InvalidArgument(text(driver_, " release: handle ", handle.id, " is mapped at ", hex(at),
                               "; unmap it first"));
  }
  return {*this, allocations_, allocations_.extract(found)};
}

RangeTable::Mappings::iterator RangeTable::mapping_over(Address address) {
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return mappings_.end();
  const auto before = std::prev(after);
  return address - before->first < before->second.size ? before : mappings_.end();
}

bool RangeTable::overlaps_mapping(Address address, Bytes size) {
  if (mapping_over(address) != mappings_.end()) return true;
  const auto next = mappings_.lower_bound(address);
  return next != mappings_.end() && next->first - address < size;
}

void RangeTable::check_reserved(Address address, Bytes size) {
  const auto after = ranges_.upper_bound(address);
  if (after != ranges_.begin()) {
    const auto& [base, length] = *std::prev(after);
    const Bytes skipped = address - base;
    if (skipped < length && size <= length - skipped) return;
  }
  throw InvalidArgument(text(driver_, " map: ", size, " bytes at ", hex(address),
                             " do not lie in one range that this driver reserved"));
}

RangeTable::Edit RangeTable::map(void* address, Handle handle) {
  const Address at = address_of(address);
  check_multiple("map", "address", at);
  const std::lock_guard lock(mutex_);
  Allocation& allocation = find("map", handle)->second;
  if (allocation.mapped_at != 0) {
    throw InvalidArgument(text(driver_, " map: handle ", handle.id, " is mapped already, at ",
                               hex(allocation.mapped_at), "; a handle has one address"));
  }
  check_reserved(at, handle.size);
  if (overlaps_mapping(at, handle.size)) {
    throw InvalidArgument(text(driver_, " map: something is mapped already in the ", handle.size,
                               " bytes at ", hex(at), "; unmap it first"));
  }
  mappings_.emplace(at, Mapping{handle.id, handle.size});
  allocation.mapped_at = at;
  return {*this, Edit::Kind::kMap, at, handle.size, allocation.native, {}};
}

RangeTable::Edit RangeTable::set_access(void* address, Bytes size) {
  const Address at = address_of(address);
  check_multiple("set_access", "address", at);
  check_multiple("set_access", "size", size);
  const std::lock_guard lock(mutex_);
  std::vector<Mapping*> run;
  std::vector<std::pair<Address, Bytes>> shut;
  for (Bytes covered = 0; covered < size; covered += run.back()->size) {
    const auto found = mappings_.find(at + covered);
    if (found == mappings_.end() || found->second.busy || found->second.size > size - covered) {
      throw InvalidArgument(text(driver_, " set_access: ", size, " bytes at ", hex(at),
                                 " are not a run of whole mappings; see what is at ",
                                 hex(at + covered)));
    }
    run.push_back(&found->second);
    if (!found->second.accessible) shut.emplace_back(found->first, found->second.size);
  }
  for (Mapping* mapping : run) mapping->busy = true;
  return {*this, Edit::Kind::kSetAccess, at, size, 0, std::move(shut)};
}

RangeTable::Edit RangeTable::unmap(void* address, Bytes size) {
  const Address at = address_of(address);
  const std::lock_guard lock(mutex_);
  const auto mapping = mappings_.find(at);
  if (mapping == mappings_.end() || mapping->second.busy || mapping->second.size != size) {
    throw InvalidArgument(text(driver_, " unmap: ", size, " bytes at ", hex(at),
                               " are not what one map() tied, or a call on them is under way"));
  }
  mapping->second.busy = true;
  return {*this, Edit::Kind::kUnmap, at, size, 0, {}};
}

void RangeTable::untie(Mappings::iterator mapping) {
  allocations_.at(mapping->second.handle).mapped_at = 0;
  mappings_.erase(mapping);
}

void RangeTable::end(const Edit& edit) {
  const std::lock_guard lock(mutex_);
  const auto first = mappings_.find(edit.at_);
  const bool stays = edit.kind_ != (edit.done_ ? Edit::Kind::kUnmap : Edit::Kind::kMap);
  if (!stays) return untie(first);
  for (auto it = first; it != mappings_.end() && it->first - edit.at_ < edit.size_; ++it) {
    it->second.busy = false;
    if (edit.done_ && edit.kind_ == Edit::Kind::kSetAccess) it->second.accessible = true;
  }
}

void RangeTable::check_accessible(const char* call, void* address, Bytes size) {
  const Address at = address_of(address);
  const std::lock_guard lock(mutex_);
  Bytes covered = 0;
  while (size == 0 || covered < size) {
    const auto found = mapping_over(at + covered);
    if (size == 0 || found == mappings_.end() || found->second.busy || !found->second.accessible) {
      throw InvalidArgument(text(driver_, " ", call, ": ", size, " bytes at ", hex(at),
                                 " are not all mapped and accessible, or none"));
    }
    covered = found->first + found->second.size - at;
  }
}

std::vector<std::pair<Address, Bytes>> RangeTable::mappings() {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Address, Bytes>> found;
  for (const auto& [address, mapping] : mappings_) found.emplace_back(address, mapping.size);
  return found;
}

std::vector<std::pair<Address, Bytes>> RangeTable::ranges() {
  const std::lock_guard lock(mutex_);
  return {ranges_.begin(), ranges_.end()};
}

std::vector<std::pair<std::uint64_t, Bytes>> RangeTable::handles() {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::uint64_t, Bytes>> found;
  for (const auto& [id, allocation] : allocations_)
    found.emplace_back(allocation.native, allocation.size);
  return found;
}

}  // namespace kvcached::vmm
