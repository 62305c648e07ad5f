#include "vmm/faulty_driver.h"

#include <algorithm>
#include <thread>

#include "vmm/text.h"

namespace kvcached::vmm {

Call call_named(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < kCallNames.size(); ++i) {
    if (name == kCallNames[i]) return static_cast<Call>(i);
    known += text(i ? ", " : "", kCallNames[i]);
  }
  throw InvalidArgument(text("no driver call is named '", name, "'; there are ", known));
}

Fault fault_named(const std::string& name) {
  if (name == "error") return Fault::kError;
  if (name == "oom") return Fault::kOutOfMemory;
  throw InvalidArgument(text("no fault is named '", name, "'; there are error, oom"));
}

void FaultyDriver::fail_at(Call call, std::uint64_t n, Fault fault) {
  const std::lock_guard lock(mutex_);
  Plan& p = plan(call);
  p.strike_at = n == 0 ? 0 : p.calls + n;
  p.always = false;
  p.fault = fault;
}

void FaultyDriver::fail_always(Call call, Fault fault) {
  const std::lock_guard lock(mutex_);
  plan(call).always = true;
  plan(call).fault = fault;
}

void FaultyDriver::delay(Call call, std::chrono::microseconds wait) {
  const std::lock_guard lock(mutex_);
  plan(call).wait = wait;
}

void FaultyDriver::quota(std::optional<Bytes> bytes) {
  const std::lock_guard lock(mutex_);
  quota_ = bytes;
}

std::map<std::string, std::uint64_t> FaultyDriver::counts() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::uint64_t> found;
  for (std::size_t i = 0; i < kCallNames.size(); ++i) found[kCallNames[i]] = plans_[i].calls;
  return found;
}

void FaultyDriver::reset() {
  const std::lock_guard lock(mutex_);
  plans_.fill(Plan{});
  quota_.reset();
}

void FaultyDriver::enter(Call call) {
  std::unique_lock lock(mutex_);
  Plan& p = plan(call);
  const std::uint64_t turn = ++p.calls;
  const bool strikes = p.always || turn == p.strike_at;
  const Fault fault = p.fault;
  const auto wait = p.wait;
  lock.unlock();
  if (wait.count() > 0) std::this_thread::sleep_for(wait);
  if (!strikes) return;
  const std::string what =
      text("injected fault in call ", turn, " of ", kCallNames[static_cast<std::size_t>(call)]);
  switch (fault) {
    case Fault::kError:
      throw DriverError(what);
    case Fault::kOutOfMemory:
      throw OutOfMemory(what);
  }
}

void* FaultyDriver::reserve(Bytes size) {
  enter(Call::kReserve);
  return inner_->reserve(size);
}

void FaultyDriver::unreserve(void* base, Bytes size) {
  enter(Call::kUnreserve);
  inner_->unreserve(base, size);
}

void FaultyDriver::charge(Bytes size) {
  const std::lock_guard lock(mutex_);
  if (quota_ && (created_ > *quota_ || size > *quota_ - created_)) {
    throw OutOfMemory(
        text("injected quota: ", size, " bytes asked for, ", created_, " of ", *quota_, " in use"));
  }
  created_ += size;
}

Handle FaultyDriver::create(Bytes size) {
  enter(Call::kCreate);
  charge(size);
  try {
    return inner_->create(size);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    created_ -= size;
    throw;
  }
}

void FaultyDriver::release(Handle handle) {
  enter(Call::kRelease);
  inner_->release(handle);
  const std::lock_guard lock(mutex_);
  created_ -= handle.size;
}

void FaultyDriver::map(void* address, Handle handle) {
  enter(Call::kMap);
  inner_->map(address, handle);
}

void FaultyDriver::set_access(void* address, Bytes size) {
  enter(Call::kSetAccess);
  inner_->set_access(address, size);
}

void FaultyDriver::unmap(void* address, Bytes size) {
  enter(Call::kUnmap);
  inner_->unmap(address, size);
}

void FaultyDriver::zero(void* address, Bytes size) {
  enter(Call::kZero);
  inner_->zero(address, size);
}

Bytes FaultyDriver::free_bytes() {
  enter(Call::kFreeBytes);
  const Bytes free = inner_->free_bytes();
  const std::lock_guard lock(mutex_);
  if (!quota_) return free;
  return std::min(free, *quota_ > created_ ? *quota_ - created_ : 0);
}

}  // namespace kvcached::vmm
