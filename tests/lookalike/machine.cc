#include "machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace lookalike {
namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr unsigned char kPattern = 0xDB;  // what new memory holds

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

}  // namespace

Machine& machine() {
  static Machine* const instance = new Machine;  // outlives every thread
  return *instance;
}

int& capture_mode() {
  thread_local int mode = kGlobal;
  return mode;
}

Machine::Machine() : file_(::memfd_create("lookalike", MFD_CLOEXEC)) {}

void Machine::block(const std::string& name) {
  const std::lock_guard lock(gate_);
  blocked_ = name;
  opened_.notify_all();
}

int Machine::waiting() {
  const std::lock_guard lock(gate_);
  return waiting_;
}

void Machine::wait_while_blocked(const char* name) {
  std::unique_lock lock(gate_);
  if (blocked_ != name || waiting_ > 0) return;
  ++waiting_;
  opened_.wait(lock, [&] { return blocked_ != name; });
  --waiting_;
}

int Machine::refuse(const char* name, unsigned needs, bool current) {
  const std::uint64_t number = ++counts[name];
  if (sticky != 0) return sticky;
  const auto struck = [&](const Plan& plan) { return plan.name == name && plan.at == number; };
  if (const auto plan = std::find_if(plans.begin(), plans.end(), struck); plan != plans.end())
    return plan->status;
  if ((needs & kStarted) != 0 && !started) return kNotInitialized;
  if ((needs & kDevice) != 0 && !current) return kInvalidContext;
  if ((needs & kNoCapture) != 0 && captures > 0 && capture_mode() != kRelaxed) {
    spoiled = true;
    return kCaptureUnsupported;
  }
  return kSuccess;
}

int Machine::reserve(Address& base, std::size_t size, std::size_t alignment) {
  alignment = std::max(alignment, granularity);
  if (size == 0 || size % granularity != 0) return kInvalidValue;
  void* const got = ::mmap(nullptr, size + alignment, PROT_NONE, kReserved, -1, 0);
  if (got == MAP_FAILED) return kOutOfMemory;
  const auto start = reinterpret_cast<Address>(got);
  base = (start + alignment - 1) & ~(alignment - 1);
  if (base > start) ::munmap(got, base - start);
  ::munmap(pointer(base + size), start + alignment - base);
  ranges_[base] = size;
  return kSuccess;
}

int Machine::unreserve(Address base, std::size_t size) {
  const auto found = ranges_.find(base);
  if (found == ranges_.end() || found->second != size) return kInvalidValue;
  const auto inside = mappings_.lower_bound(base);
  if (inside != mappings_.end() && inside->first - base < size) return kInvalidValue;
  note_edit(base, size);
  ::munmap(pointer(base), size);
  ranges_.erase(found);
  return kSuccess;
}

int Machine::create(std::uint64_t& handle, std::size_t size) {
  if (size == 0 || size % granularity != 0) return kInvalidValue;
  if (size > memory - used) return kOutOfMemory;
  const std::string pattern(std::min<std::size_t>(size, 1 << 20), static_cast<char>(kPattern));
  for (std::size_t done = 0; done < size;) {
    const auto wrote = ::pwrite(file_, pattern.data(), std::min(pattern.size(), size - done),
                                static_cast<off_t>(end_ + done));
    if (wrote <= 0) return kOutOfMemory;
    done += static_cast<std::size_t>(wrote);
  }
  handle = ++last_handle_;
  allocations_[handle] = {end_, size};
  end_ += size;
  used += size;
  return kSuccess;
}

void Machine::drop_if_unused(std::uint64_t handle) {
  const auto found = allocations_.find(handle);
  if (!found->second.released || found->second.mapped > 0) return;
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(found->second.offset), static_cast<off_t>(found->second.size));
  used -= found->second.size;
  allocations_.erase(found);
}

int Machine::release(std::uint64_t handle) {
  const auto found = allocations_.find(handle);
  if (found == allocations_.end() || found->second.released) return kInvalidValue;
  found->second.released = true;
  drop_if_unused(handle);
  return kSuccess;
}

int Machine::map(Address address, std::size_t size, std::uint64_t handle) {
  const auto found = allocations_.find(handle);
  if (found == allocations_.end() || found->second.released || found->second.size != size ||
      address % granularity != 0)
    return kInvalidValue;
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) return kInvalidValue;
  --range;
  if (address - range->first >= range->second || size > range->second - (address - range->first))
    return kInvalidValue;
  auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first - address < size) return kInvalidValue;
  if (next != mappings_.begin()) {
    --next;
    if (address - next->first < next->second.size) return kInvalidValue;
  }
  note_edit(address, size);
  if (::mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, file_,
             static_cast<off_t>(found->second.offset)) == MAP_FAILED)
    return kOutOfMemory;
  ::madvise(pointer(address), size, MADV_DONTFORK);
  mappings_[address] = {size, handle};
  ++found->second.mapped;
  return kSuccess;
}

template <class Edit>
bool Machine::each_mapping(Address address, std::size_t size, const Edit& edit) {
  std::vector<std::map<Address, Mapping>::iterator> run;
  for (std::size_t covered = 0; covered < size; covered += run.back()->second.size) {
    const auto found = mappings_.find(address + covered);
    if (found == mappings_.end() || found->second.size > size - covered) return false;
    run.push_back(found);
  }
  for (const auto& mapping : run) edit(mapping);
  return size > 0;
}

int Machine::set_access(Address address, std::size_t size) {
  const bool whole = each_mapping(address, size, [](auto mapping) {
    ::mprotect(pointer(mapping->first), mapping->second.size, PROT_READ | PROT_WRITE);
    mapping->second.accessible = true;
  });
  return whole ? kSuccess : kInvalidValue;
}

int Machine::get_access(unsigned long long& flags, Address address) {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return kInvalidValue;
  --found;
  if (address - found->first >= found->second.size) return kInvalidValue;
  flags = found->second.accessible ? 3 : 0;
  return kSuccess;
}

int Machine::unmap(Address address, std::size_t size) {
  note_edit(address, size);
  const bool whole = each_mapping(address, size, [this](auto mapping) {
    ::mmap(pointer(mapping->first), mapping->second.size, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
    const std::uint64_t handle = mapping->second.handle;
    --allocations_.at(handle).mapped;
    drop_if_unused(handle);
    mappings_.erase(mapping);
  });
  return whole ? kSuccess : kInvalidValue;
}

void Machine::note_edit(Address address, std::size_t size) {
  for (const Range& range : touched_)
    if (range.address < address + size && address < range.address + range.size) ++violations;
}

bool Machine::accessible(Address address, std::size_t size) const {
  for (std::size_t covered = 0; covered < size;) {
    auto found = mappings_.upper_bound(address + covered);
    if (found == mappings_.begin()) return false;
    --found;
    if (!found->second.accessible || address + covered - found->first >= found->second.size)
      return false;
    covered = found->first + found->second.size - address;
  }
  return true;
}

int Machine::copy(void* to, const void* from, std::size_t size, Address device_side) {
  if (!accessible(device_side, size)) return kInvalidValue;
  std::memcpy(to, from, size);
  return kSuccess;
}

int Machine::fill(Address address, int value, std::size_t size, Stream* stream) {
  if (!accessible(address, size)) return kInvalidValue;
  submit(*stream, [this, address, value, size] {
    if (accessible(address, size)) {
      std::memset(pointer(address), value, size);
    } else {
      sticky = kIllegalAddress;
    }
  });
  return kSuccess;
}

Stream* Machine::add_stream(bool blocking) {
  streams_.push_back(new Stream{blocking});
  ++live_streams;
  return streams_.back();
}

Stream* Machine::stream(void* handle) {
  const auto number = reinterpret_cast<Address>(handle);
  return number <= 2 ? &default_ : static_cast<Stream*>(handle);
}

void Machine::submit(Stream& stream, std::function<void()> work) {
  ++stream.queued;
  stream.work.push_back(std::move(work));
  if (!stream.held) hold(stream, false);
}

void Machine::hold(Stream& stream, bool held) {
  stream.held = held;
  while (!held && !stream.work.empty()) {
    const auto work = std::move(stream.work.front());
    stream.work.pop_front();
    work();
    ++stream.done;
  }
}

int Machine::begin_capture(int mode) {
  captures += mode == kGlobal;
  return kSuccess;
}

int Machine::end_capture() {
  captures = 0;
  const bool was_spoiled = spoiled;
  spoiled = false;
  return was_spoiled ? kCaptureInvalidated : kSuccess;
}

void Machine::touch(Stream& stream, Address address, std::size_t size) {
  touched_.push_back({address, size});
  submit(stream, [this, address, size] {
    const auto mine = [&](const Range& r) { return r.address == address && r.size == size; };
    touched_.erase(std::find_if(touched_.begin(), touched_.end(), mine));
    if (!accessible(address, size)) sticky = kIllegalAddress;
  });
}

// Behind the default stream is behind all that block it.
int Machine::record(Event& event, void* handle) {
  Stream* const mine = stream(handle);
  event.behind = {{mine, mine->queued}};
  if (mine != &default_) return kSuccess;
  for (Stream* other : streams_)
    if (other->blocking) event.behind.emplace_back(other, other->queued);
  return kSuccess;
}

int Machine::query(const Event& event) const {
  for (const auto& [stream, sequence] : event.behind)
    if (stream->done < sequence) return kNotReady;
  return kSuccess;
}

}  // namespace lookalike
