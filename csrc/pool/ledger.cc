#include "pool/ledger.h"

#include <algorithm>
#include <limits>
#include <string>

#include "pool/refuse.h"

namespace kvcached::pool {
namespace {

Id checked_size(const char* what, std::int64_t value) {
  constexpr std::int64_t kMax = std::numeric_limits<Id>::max();
  if (value >= 1 && value <= kMax) return static_cast<Id>(value);
  refuse("Ledger", std::string(what) + " is " + std::to_string(value) + ", must be 1 to " +
                       std::to_string(kMax));
}

}  // namespace

const char* name(BlockState state) {
  constexpr const char* kNames[] = {"null", "used", "cached", "free"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* name(PageState state) {
  constexpr const char* kNames[] = {"virtual", "preparing", "owned", "retiring", "quarantined"};
  return kNames[static_cast<std::size_t>(state)];
}

Ledger::Ledger(std::int64_t num_blocks, std::int64_t blocks_per_page)
    : num_blocks_(checked_size("num_blocks", num_blocks)),
      blocks_per_page_(checked_size("blocks_per_page", blocks_per_page)),
      num_pages_(static_cast<Id>((num_blocks + blocks_per_page - 1) / blocks_per_page)),
      state_(at(num_blocks_), BlockState::kFree),
      free_(num_blocks_),
      lru_(num_blocks_),
      page_state_(at(num_pages_), PageState::kVirtual),
      used_(at(num_pages_), 0),
      cached_(at(num_pages_), 0),
      by_room_(std::int64_t{num_pages_} * (2 * std::min(blocks_per_page_, num_blocks_) + 1)),
      empty_(num_pages_),
      virtual_(num_pages_),
      first_used_(num_pages_),
      was_told_(at(num_pages_), 0) {
  state_[0] = BlockState::kNull;
  for (Id b = 1; b < num_blocks_; ++b) free_.set(b);
  for (Id p = 1; p < num_pages_; ++p) virtual_.set(p);
  page_state_[0] = PageState::kOwned;
  pages_in_[static_cast<std::size_t>(PageState::kOwned)] = 1;
  pages_in_[static_cast<std::size_t>(PageState::kVirtual)] = num_pages_ - 1;
  index(0);
}

// ---- indexes

std::int64_t Ledger::end_of(Id page) const {
  return std::min(begin_of(page) + blocks_per_page_, std::int64_t{num_blocks_});
}

Id Ledger::room(Id page) const {
  const auto size = static_cast<Id>(end_of(page) - begin_of(page)) - (page == 0 ? 1 : 0);
  return size - used_[at(page)] - cached_[at(page)];
}

std::int64_t Ledger::room_key(Id page, Id room) const {
  const std::int64_t most = std::min(blocks_per_page_, num_blocks_);
  const bool in_use = page == 0 || used_[at(page)] > 0;
  const bool empty = !in_use && cached_[at(page)] == 0;
  const std::int64_t rank = empty ? 2 * most : (in_use ? 0 : most) + room - 1;
  return rank * num_pages_ + page;
}

void Ledger::index(Id page) {
  const Id free = room(page);
  num_free_ += free;
  if (free > 0) by_room_.set(room_key(page, free));
  if (page == 0 || used_[at(page)] > 0) return;
  if (cached_[at(page)] > 0) {
    ++cached_only_pages_;
  } else {
    empty_.set(page);
    ++empty_pages_;
  }
}

void Ledger::unindex(Id page) {
  const Id free = room(page);
  num_free_ -= free;
  if (free > 0) by_room_.clear(room_key(page, free));
  if (page == 0 || used_[at(page)] > 0) return;
  if (cached_[at(page)] > 0) {
    --cached_only_pages_;
  } else {
    empty_.clear(page);
    --empty_pages_;
  }
}

void Ledger::note_use(Id page) {
  if (was_told_[at(page)] == 0) first_used_.set(page);
}

void Ledger::check_block(const char* call, Id block) const {
  if (block >= 0 && block < num_blocks_) return;
  refuse(call, "there is no block " + std::to_string(block) + ", blocks are 0 to " +
                   std::to_string(num_blocks_ - 1));
}

void Ledger::check_page(const char* call, Id page) const {
  if (page >= 0 && page < num_pages_) return;
  refuse(call, "there is no page " + std::to_string(page) + ", pages are 0 to " +
                   std::to_string(num_pages_ - 1));
}

}  // namespace kvcached::pool
