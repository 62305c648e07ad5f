#include "vmm/arena.h"

#include <unistd.h>

#include <exception>
#include <iterator>
#include <limits>
#include <utility>

#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

const char* reason(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();  // lives as long as `error` does
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

std::shared_ptr<Arena> Arena::reserve(std::shared_ptr<Driver> driver, Bytes size,
                                      void (*destroy)(Arena*)) {
  const Bytes granularity = driver->granularity();
  if (size == 0 || size > std::numeric_limits<Bytes>::max() - granularity) {
    throw InvalidArgument(text("arena: cannot reserve ", size,
                               " bytes; the size must be from 1 to 2^64 - 2 granules"));
  }
  const Bytes rounded = (size + granularity - 1) / granularity * granularity;
  void* base = driver->reserve(rounded);
  Arena* arena = nullptr;
  try {
    arena = new Arena(driver, base, rounded);
  } catch (...) {
    driver->unreserve(base, rounded);
    throw;
  }
  return std::shared_ptr<Arena>(arena, destroy);  // which destroys it if this throws
}

Arena::Arena(std::shared_ptr<Driver> driver, void* base, Bytes size)
    : driver_(std::move(driver)), base_(base), size_(size) {}

Arena::~Arena() {
  if (!process_.is_here()) return;
  release();
  for (const auto& [offset, entry] : entries_) {
    if (entry.tied) return;  // the range cannot be given back while the driver has it mapped
  }
  try {
    driver_->unreserve(base_, size_);
  } catch (...) {
    // Nobody is left to tell; the driver gives the range back when it goes.
  }
}

void Arena::check_process(const char* call) const {
  if (!process_.is_here()) {
    throw InvalidArgument(text("arena ", call, ": this arena belongs to process ", process_.pid(),
                               ", this is process ", ::getpid()));
  }
}

void Arena::check_range(const char* call, Bytes offset, Bytes size) const {
  if (size == 0 || offset >= size_ || size > size_ - offset) {
    throw InvalidArgument(text("arena ", call, ": ", size, " bytes at offset ", offset,
                               " are none or do not lie in the arena of ", size_, " bytes"));
  }
}

// Takes the offsets for this call. Wants mutex_ not held.
Arena::Entries::iterator Arena::claim(Bytes offset, Handle handle) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw InvalidArgument("arena map: this arena was released; make another one");
  const auto next = entries_.lower_bound(offset);
  const bool meets_next = next != entries_.end() && next->first - offset < handle.size;
  bool meets_before = false;
  if (next != entries_.begin()) {
    const auto& [start, before] = *std::prev(next);
    meets_before = offset - start < before.handle.size;
  }
  if (meets_next || meets_before) {
    throw InvalidArgument(text("arena map: something is mapped, in quarantine or under way in the ",
                               handle.size, " bytes at offset ", offset));
  }
  return entries_.emplace(offset, Entry{handle, State::kBusy, false}).first;
}

void Arena::tie(Entries::iterator entry, bool fresh) {
  const Handle handle = entry->second.handle;
  void* const start = address(entry->first);
  driver_->map(start, handle);
  entry->second.tied = true;
  driver_->set_access(start, handle.size);
  if (!fresh || !driver_->creates_zeroed()) driver_->zero(start, handle.size);
}

void Arena::untie(Entries::iterator entry) {
  driver_->unmap(address(entry->first), entry->second.handle.size);
  entry->second.tied = false;
}

void Arena::map(Bytes offset, Handle handle, bool fresh) {
  check_process("map");
  if (!handle) throw InvalidArgument("arena map: the handle is none (id 0)");
  if (offset % driver_->granularity() != 0) {
    throw InvalidArgument(text("arena map: offset ", offset,
                               " is not a multiple of the granularity ", driver_->granularity()));
  }
  check_range("map", offset, handle.size);
  const auto entry = claim(offset, handle);
  std::exception_ptr error;
  try {
    tie(entry, fresh);
  } catch (...) {
    error = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  if (!error && !closed_) {
    entry->second.state = State::kMapped;
    mapped_bytes_ += handle.size;
    return;
  }
  lock.unlock();
  if (!error) {
    error = std::make_exception_ptr(
        InvalidArgument("arena map: the arena was released while this call was under way"));
  }
  std::exception_ptr second;
  try {
    if (entry->second.tied) untie(entry);
  } catch (...) {
    second = std::current_exception();
  }
  lock.lock();
  if (!second) {
    entries_.erase(entry);
    std::rethrow_exception(error);
  }
  entry->second.state = State::kQuarantined;
  quarantined_bytes_ += handle.size;
  throw Quarantined(text("arena map: ", reason(error), "; undoing it failed too: ", reason(second),
                         "; the ", handle.size, " bytes at offset ", offset,
                         " are in quarantine until the arena is released"));
}

Handle Arena::unmap(Bytes offset) {
  check_process("unmap");
  std::unique_lock lock(mutex_);
  const auto entry = entries_.find(offset);
  if (entry == entries_.end() || entry->second.state != State::kMapped) {
    throw InvalidArgument(text("arena unmap: no mapping starts at offset ", offset));
  }
  const Handle handle = entry->second.handle;
  entry->second.state = State::kBusy;
  lock.unlock();
  try {
    untie(entry);
  } catch (...) {
    lock.lock();
    entry->second.state = State::kMapped;
    throw;
  }
  lock.lock();
  entries_.erase(entry);
  mapped_bytes_ -= handle.size;
  return handle;
}

void Arena::zero(Bytes offset, Bytes size) {
  check_process("zero");
  check_range("zero", offset, size);
  driver_->zero(address(offset), size);
}

bool Arena::is_mapped(Bytes offset) const {
  check_process("is_mapped");
  const std::lock_guard lock(mutex_);
  const auto after = entries_.upper_bound(offset);
  if (after == entries_.begin()) return false;
  const auto& [start, entry] = *std::prev(after);
  return entry.state == State::kMapped && offset - start < entry.handle.size;
}

// Unmaps and releases an entry that was in state `before` and is busy now, or leaves it in
// quarantine. Wants mutex_ not held.
void Arena::let_go(Entries::iterator entry, State before) {
  const Bytes size = entry->second.handle.size;
  bool gone = false;
  try {
    if (entry->second.tied) untie(entry);
    driver_->release(entry->second.handle);
    gone = true;
  } catch (...) {
    // Told by quarantined_bytes().
  }
  const std::lock_guard lock(mutex_);
  if (!gone) quarantined_bytes_ += size;
  (before == State::kMapped ? mapped_bytes_ : quarantined_bytes_) -= size;
  if (gone) {
    entries_.erase(entry);
  } else {
    entry->second.state = State::kQuarantined;
  }
}

void Arena::release() noexcept {
  if (!process_.is_here()) return;
  std::unique_lock lock(mutex_);
  closed_ = true;
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto entry = next;
    const Bytes offset = entry->first;
    const State before = entry->second.state;
    if (before != State::kBusy) {  // else it is another call's, which will find the arena closed
      entry->second.state = State::kBusy;
      lock.unlock();
      let_go(entry, before);
      lock.lock();
    }
    next = entries_.upper_bound(offset);
  }
}

}  // namespace kvcached::vmm
