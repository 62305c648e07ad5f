#include "budget/rank_memory.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvcached::budget {
namespace {

// The table's lock is held for microseconds. Who does not get it in 20 times 50 ms goes without.
constexpr std::chrono::milliseconds kLockDeadline{50};
constexpr int kLockTries = 20;

}  // namespace

RankMemory::RankMemory(std::shared_ptr<Budget> budget, int row, std::shared_ptr<vmm::Driver> driver,
                       std::vector<Extent> extents, std::size_t num_pages)
    : budget_(std::move(budget)),
      row_(row),
      driver_(std::move(driver)),
      extents_(std::move(extents)),
      pages_(num_pages) {
  if (extents_.empty()) throw std::invalid_argument("a rank needs tensors, and got none");
  const Bytes granule = driver_->granularity();
  for (const Extent& extent : extents_) {
    if (extent.bytes == 0 || extent.bytes % granule != 0 ||
        extent.arena->size() / extent.bytes < num_pages)
      throw std::invalid_argument(
          "an extent of " + std::to_string(extent.bytes) + " bytes a page in an arena of " +
          std::to_string(extent.arena->size()) + ": allowed are whole granules of " +
          std::to_string(granule) + " bytes, and room for " + std::to_string(num_pages) + " pages");
    page_bytes_ += extent.bytes;
  }
}

Grant RankMemory::try_lease(Bytes bytes) {
  try {
    const Bytes created = budget_->created();
    const Bytes free = driver_->free_bytes();
    return budget_->lease(row_, bytes, free, kLockDeadline, created);
  } catch (const vmm::DriverError&) {
    return Grant::kRefused;  // how much is free is unknown
  }
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
  std::vector<Piece>& pieces = pages_[page];
  pieces.resize(extents_.size());
  Bytes made = 0;
  try {
    for (std::size_t e = 0; e < extents_.size(); ++e) {
      pieces[e].handle = driver_->create(extents_[e].bytes);
      pieces[e].place = Place::kHeld;
      budget_->mark_created(row_, extents_[e].bytes);
      promised_ -= extents_[e].bytes;
      created_ += extents_[e].bytes;
      made += extents_[e].bytes;
    }
  } catch (const vmm::DriverError&) {
    unlease_bytes(page_bytes_ - made);
    release(page);
    throw;
  }
}

void RankMemory::map(std::int32_t page) {
  std::vector<Piece>& pieces = pages_[page];
  for (std::size_t e = 0; e < extents_.size(); ++e) {
    Piece& piece = pieces[e];
    if (piece.place == Place::kMapped) continue;
    if (piece.place != Place::kHeld)
      throw vmm::Quarantined("page " + std::to_string(page) + " was lost to a driver error before");
    try {
      extents_[e].arena->map(page * extents_[e].bytes, piece.handle, true);
    } catch (const vmm::Quarantined&) {
      piece.place = Place::kLost;
      throw;
    }
    piece.place = Place::kMapped;
    mapped_ += extents_[e].bytes;
  }
}

void RankMemory::take_back(std::size_t extent, std::int32_t page, Piece& piece) {
  const auto& [arena, bytes] = extents_[extent];
  if (piece.place == Place::kMapped) {
    arena->unmap(page * bytes);
    piece.place = Place::kHeld;
    mapped_ -= bytes;
  }
  if (piece.place == Place::kHeld) {
    driver_->release(piece.handle);
    piece.place = Place::kNowhere;
  }
}

bool RankMemory::release(std::int32_t page) {
  std::vector<Piece>& pieces = pages_[page];
  Bytes gone = 0;
  bool all = true;
  for (std::size_t e = 0; e < pieces.size(); ++e) {
    if (pieces[e].place == Place::kNowhere) continue;
    try {
      take_back(e, page, pieces[e]);
    } catch (const vmm::DriverError&) {
      // The piece stays where the driver left it: false says so.
    }
    if (pieces[e].place == Place::kNowhere)
      gone += extents_[e].bytes;
    else
      all = false;
  }
  if (all) std::vector<Piece>().swap(pieces);
  forget(gone);
  return all;
}

void RankMemory::forget(Bytes bytes) {
  if (bytes == 0) return;
  created_ -= bytes;
  budget_->mark_released(row_, bytes);
}

// Once more for what release() left mapped or lost. Returns the bytes that went.
Bytes RankMemory::release_arena(std::size_t extent) {
  const auto& [arena, bytes] = extents_[extent];
  Bytes left = 0;
  for (const std::vector<Piece>& pieces : pages_) {
    if (pieces.empty()) continue;
    const Place place = pieces[extent].place;
    if (place == Place::kMapped) mapped_ -= bytes;
    if (place == Place::kMapped || place == Place::kLost) left += bytes;
  }
  arena->release();
  return left - std::min(left, arena->quarantined_bytes());
}

bool RankMemory::close() {
  for (std::size_t page = 0; page < pages_.size(); ++page) release(static_cast<std::int32_t>(page));
  for (std::size_t e = 0; e < extents_.size(); ++e) forget(release_arena(e));
  unlease_bytes(promised_);
  budget_->set_want(row_, 0);
  budget_->set_idle(row_, 0);
  return created_ == 0;
}

}  // namespace kvcached::budget
