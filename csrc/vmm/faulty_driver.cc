#include "vmm/faulty_driver.h"

#include <type_traits>

namespace kvcached::vmm {

void FaultyDriver::reset() {
  plan_.reset();
  quotas_.set({});
  work_.clear();
}

template <class Work>
auto FaultyDriver::run(Call call, Work&& work) {
  const FaultPlan::Turn turn = plan_.count(call);
  turn.before();
  if constexpr (std::is_void_v<decltype(work())>) {
    work();
    turn.after();
  } else {
    const auto result = work();
    turn.after();
    return result;
  }
}

template <class Work>
void FaultyDriver::edit(Call call, void* address, Bytes size, Work&& work) {
  run(call, [&] {
    const WorkRanges::Edit under_way(work_, kCallNames[static_cast<std::size_t>(call)],
                                     reinterpret_cast<std::uintptr_t>(address), size);
    work();
  });
}

void* FaultyDriver::reserve(Bytes size) {
  return run(Call::kReserve, [&] {
    quotas_.take_addresses(size);
    try {
      return inner_->reserve(size);
    } catch (...) {
      quotas_.give_addresses(size);
      throw;
    }
  });
}

void FaultyDriver::unreserve(void* base, Bytes size) {
  edit(Call::kUnreserve, base, size, [&] {
    inner_->unreserve(base, size);
    quotas_.give_addresses(size);
  });
}

Handle FaultyDriver::create(Bytes size) {
  return run(Call::kCreate, [&] {
    quotas_.take_memory(size);
    try {
      return inner_->create(size);
    } catch (...) {
      quotas_.give_memory(size);
      throw;
    }
  });
}

void* FaultyDriver::where(Handle handle) {
  const std::lock_guard lock(mutex_);
  const auto found = tied_.find(handle.id);
  return found == tied_.end() ? nullptr : found->second;
}

void FaultyDriver::note(std::uint64_t id, void* address) {
  const std::lock_guard lock(mutex_);
  tied_[id] = address;
  tied_at_[address] = id;
}

std::uint64_t FaultyDriver::forget(void* address) {
  const std::lock_guard lock(mutex_);
  const auto at = tied_at_.find(address);
  if (at == tied_at_.end()) return 0;
  const std::uint64_t id = at->second;
  tied_.erase(id);
  tied_at_.erase(at);
  return id;
}

void FaultyDriver::release(Handle handle) {
  void* const at = where(handle);
  edit(Call::kRelease, at, at == nullptr ? 0 : handle.size, [&] {
    inner_->release(handle);
    quotas_.give_memory(handle.size);
  });
}

void FaultyDriver::map(void* address, Handle handle) {
  edit(Call::kMap, address, handle.size, [&] {
    inner_->map(address, handle);
    note(handle.id, address);
  });
}

void FaultyDriver::set_access(void* address, Bytes size) {
  edit(Call::kSetAccess, address, size, [&] { inner_->set_access(address, size); });
}

// The note goes first: once the range is free, another thread may map and note something there.
void FaultyDriver::unmap(void* address, Bytes size) {
  edit(Call::kUnmap, address, size, [&] {
    const std::uint64_t id = forget(address);
    try {
      inner_->unmap(address, size);
    } catch (...) {
      if (id != 0) note(id, address);
      throw;
    }
  });
}

void FaultyDriver::zero(void* address, Bytes size) {
  edit(Call::kZero, address, size, [&] { inner_->zero(address, size); });
}

std::shared_ptr<Fence> FaultyDriver::fence(std::uintptr_t stream) {
  return run(Call::kFence, [&] { return inner_->fence(stream); });
}

void FaultyDriver::check_alive() const {
  if (plan_.lost()) throw DeviceLost("injected fault: the device is lost");
  inner_->check_alive();
}

Bytes FaultyDriver::free_bytes() {
  return run(Call::kFreeBytes, [&] { return quotas_.limited(inner_->free_bytes()); });
}

Bytes FaultyDriver::held_bytes() {
  return run(Call::kHeldBytes, [&] { return inner_->held_bytes(); });
}

}  // namespace kvcached::vmm
