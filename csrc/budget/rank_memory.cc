#include "budget/rank_memory.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>

namespace kvcached::budget {
namespace {

// The table's lock is held for microseconds. Who does not get it in 20 times 50 ms goes without.
constexpr std::chrono::milliseconds kLockDeadline{50};
constexpr int kLockTries = 20;

}  // namespace

RankMemory::RankMemory(std::shared_ptr<Budget> budget, int row, std::shared_ptr<vmm::Driver> driver,
                       const std::vector<Extent>& extents, std::size_t num_pages)
    : budget_(std::move(budget)), row_(row), driver_(std::move(driver)) {
  if (extents.empty()) throw std::invalid_argument("a rank needs tensors, and got none");
  for (const Extent& extent : extents) {
    try {
      granules_.emplace_back(extent.arena, extent.bytes, num_pages);
    } catch (const vmm::InvalidArgument& error) {
      throw std::invalid_argument(error.what());
    }
    own_bytes_ += extent.bytes;
    page_bytes_ += granules_.back().most_bytes();
  }
}

Bytes RankMemory::mapped_bytes() const {
  Bytes sum = 0;
  for (const vmm::Granules& granules : granules_) sum += granules.mapped_bytes();
  return sum;
}

bool RankMemory::holds(std::int32_t page) const {
  for (const vmm::Granules& granules : granules_)
    if (granules.holds(page)) return true;
  return false;
}

bool RankMemory::look() {
  try {
    const Bytes created = budget_->created();
    sample_ = {driver_->free_bytes(), created};
    return true;
  } catch (const vmm::DriverError&) {
    driver_->check_alive();
    return false;
  }
}

Grant RankMemory::try_lease(Bytes bytes) {
  if (!look()) return Grant::kRefused;  // how much is free is unknown
  return budget_->lease(row_, bytes, sample_.device_free, kLockDeadline, sample_.created_before);
}

std::uint32_t RankMemory::lease(std::uint32_t pages, const std::atomic<bool>& stop) {
  std::uint32_t granted = 0;
  int misses = 0;
  for (std::uint32_t step = pages; step > 0;) {
    switch (try_lease(step * page_bytes_)) {
      case Grant::kGranted:
        granted += step;
        promised_ += step * page_bytes_;
        step = std::min(step, pages - granted);
        break;
      case Grant::kRefused:
        step /= 2;
        break;
      case Grant::kMissed:
        if (stop || ++misses == kLockTries) return granted;
        break;
    }
  }
  return granted;
}

void RankMemory::unlease(std::uint32_t pages) { unlease_bytes(pages * page_bytes_); }

void RankMemory::unlease_bytes(Bytes bytes) {
  if (bytes == 0) return;
  budget_->unlease(row_, bytes);
  promised_ -= bytes;
}

void RankMemory::create(std::int32_t page) {
  Bytes left = page_bytes_;  // of the promise
  std::exception_ptr error;
  for (vmm::Granules& granules : granules_) {
    const Bytes before = granules.created_bytes();
    try {
      granules.create(page);
    } catch (const vmm::DriverError&) {
      error = std::current_exception();
    }
    const Bytes made = granules.created_bytes() - before;
    note_created(made);
    left -= made;
    if (error) break;
  }
  unlease_bytes(left);
  if (!error) return;
  release(page);
  std::rethrow_exception(error);
}

void RankMemory::note_created(Bytes bytes) {
  if (bytes == 0) return;
  budget_->mark_created(row_, bytes);
  promised_ -= bytes;
  created_ += bytes;
}

void RankMemory::note_released(Bytes bytes) {
  if (bytes == 0) return;
  created_ -= bytes;
  budget_->mark_released(row_, bytes);
}

void RankMemory::map(std::int32_t page) {
  for (vmm::Granules& granules : granules_) granules.map(page);
}

bool RankMemory::unmap(std::int32_t page) {
  bool all = true;
  for (vmm::Granules& granules : granules_) all &= granules.unmap(page);
  return all;
}

bool RankMemory::release(std::int32_t page) {
  Bytes gone = 0;
  bool all = true;
  for (vmm::Granules& granules : granules_) {
    const Bytes before = granules.created_bytes();
    all &= granules.release(page);
    gone += before - granules.created_bytes();
  }
  note_released(gone);
  return all;
}

void RankMemory::abandon() { new std::deque<vmm::Granules>(std::move(granules_)); }

bool RankMemory::close() {
  for (vmm::Granules& granules : granules_) {
    const Bytes before = granules.created_bytes();
    granules.close();
    note_released(before - granules.created_bytes());
  }
  unlease_bytes(promised_);
  budget_->set_want(row_, 0);
  budget_->set_idle(row_, 0);
  return created_ == 0;
}

}  // namespace kvcached::budget
