#include "pool/ledger.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace kvcached::pool {
namespace {

[[noreturn]] void refuse(const char* call, const std::string& why) {
  throw std::invalid_argument(std::string(call) + ": " + why);
}

Id checked_size(const char* what, std::int64_t value) {
  constexpr std::int64_t kMax = std::numeric_limits<Id>::max();
  if (value >= 1 && value <= kMax) return static_cast<Id>(value);
  refuse("Ledger", std::string(what) + " is " + std::to_string(value) + ", must be 1 to " +
                       std::to_string(kMax));
}

void check_count(const char* call, const char* what, std::int64_t value) {
  if (value < 0)
    refuse(call, std::string(what) + " is " + std::to_string(value) + ", must be >= 0");
}

std::string block_is(Id block, BlockState state) {
  return "block " + std::to_string(block) + " is " + name(state);
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

// Keeps one page at a time out of the indexes while its blocks change; neighbours in a batch mostly
// share a page, which is then indexed once.
class Ledger::PageEdit {
 public:
  explicit PageEdit(Ledger& ledger) : ledger_(ledger) {}
  PageEdit(const PageEdit&) = delete;
  PageEdit& operator=(const PageEdit&) = delete;
  ~PageEdit() {
    if (page_ >= 0) ledger_.index(page_);
  }
  std::size_t open(Id page) {
    if (page != page_) {
      if (page_ >= 0) ledger_.index(page_);
      ledger_.unindex(page);
      page_ = page;
    }
    return at(page);
  }

 private:
  Ledger& ledger_;
  Id page_ = -1;
};

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
      by_room_(std::int64_t{num_pages_} * std::min(blocks_per_page_, num_blocks_)),
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

// ---- blocks

Ids Ledger::pop(std::int64_t n) {
  check_count("pop", "n", n);
  if (n > available()) {
    refuse("pop", std::to_string(n) + " blocks asked for, " + std::to_string(available()) +
                      " available (" + std::to_string(num_free_) + " free, " +
                      std::to_string(num_cached_) + " cached)");
  }
  const auto wanted = static_cast<std::size_t>(n);
  Ids out;
  out.reserve(wanted);
  while (out.size() < wanted && num_free_ > 0) {
    const auto page = static_cast<Id>(by_room_.first() % num_pages_);
    unindex(page);
    const auto some = std::min(wanted - out.size(), at(room(page)));
    std::int64_t block = begin_of(page);
    for (std::size_t i = 0; i < some; ++i) {
      block = free_.next(block);
      free_.clear(block);
      state_[at(static_cast<Id>(block))] = BlockState::kUsed;
      out.push_back(static_cast<Id>(block));
    }
    used_[at(page)] += static_cast<Id>(some);
    num_used_ += static_cast<Id>(some);
    index(page);
    note_use(page);
  }
  while (out.size() < wanted) {
    out.push_back(lru_.front());
    take(lru_.front());
  }
  return out;
}

void Ledger::push(const char* call, const Ids& ids, BlockState to) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool exists = ids[i] >= 0 && ids[i] < num_blocks_;
    if (exists && state_[at(ids[i])] == BlockState::kUsed) {
      state_[at(ids[i])] = to;  // so that an id named twice is found
      continue;
    }
    const BlockState found = exists ? state_[at(ids[i])] : BlockState::kNull;
    for (std::size_t j = 0; j < i; ++j) state_[at(ids[j])] = BlockState::kUsed;
    check_block(call, ids[i]);
    refuse(call, block_is(ids[i], found) +
                     ", only a used block can be given back (given back or named twice?)");
  }
  PageEdit edit(*this);
  for (const Id block : ids) {
    const std::size_t page = edit.open(page_at(block));
    --used_[page];
    if (to == BlockState::kCached) {
      ++cached_[page];
      lru_.append(block);
    } else {
      free_.set(block);
    }
  }
  num_used_ -= static_cast<Id>(ids.size());
  if (to == BlockState::kCached) num_cached_ += static_cast<Id>(ids.size());
}

void Ledger::push_free(const Ids& ids) { push("push_free", ids, BlockState::kFree); }

void Ledger::push_cached(const Ids& ids) { push("push_cached", ids, BlockState::kCached); }

void Ledger::take(Id block) {
  check_block("take", block);
  const BlockState was = state_[at(block)];
  const Id page = page_at(block);
  if (was != BlockState::kCached && was != BlockState::kFree) {
    refuse("take", block_is(block, was) + ", only a cached or free block can be taken");
  }
  if (page_state_[at(page)] != PageState::kOwned) {
    refuse("take", block_is(block, was) + " on page " + std::to_string(page) + ", which is " +
                       name(page_state_[at(page)]) + " and not owned");
  }
  unindex(page);
  if (was == BlockState::kCached) {
    lru_.remove(block);
    --cached_[at(page)];
    --num_cached_;
  } else {
    free_.clear(block);
  }
  state_[at(block)] = BlockState::kUsed;
  ++used_[at(page)];
  ++num_used_;
  index(page);
  note_use(page);
}

void Ledger::uncache(const Ids& ids) {
  for (const Id block : ids) check_block("uncache", block);
  PageEdit edit(*this);
  for (const Id block : ids) {
    if (state_[at(block)] != BlockState::kCached) continue;
    const std::size_t page = edit.open(page_at(block));
    lru_.remove(block);
    state_[at(block)] = BlockState::kFree;
    free_.set(block);
    --cached_[page];
    --num_cached_;
  }
}

void Ledger::reset_cached() {
  Ids ids;
  ids.reserve(at(num_cached_));
  for (Id b = lru_.front(); b != lru_.end(); b = lru_.next(b)) ids.push_back(b);
  uncache(ids);
}

// ---- pages

Ids Ledger::plan_growth(std::int64_t max_pages) {
  check_count("plan_growth", "max_pages", max_pages);
  const auto n = std::min(max_pages, std::int64_t{pages(PageState::kVirtual)});
  Ids out;
  out.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<Id>(virtual_.first()));
    set_page_state(out.back(), PageState::kVirtual, PageState::kPreparing);
  }
  return out;
}

Ids Ledger::retire_empty(std::int64_t max_pages) {
  check_count("retire_empty", "max_pages", max_pages);
  const auto n = std::min(max_pages, std::int64_t{empty_pages_});
  Ids out;
  out.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<Id>(empty_.last()));
    set_page_state(out.back(), PageState::kOwned, PageState::kRetiring);
  }
  return out;
}

void Ledger::grown(const Ids& pages) {
  move_pages("grown", pages, {PageState::kPreparing}, PageState::kOwned);
}

void Ledger::growth_failed(const Ids& pages) {
  move_pages("growth_failed", pages, {PageState::kPreparing}, PageState::kVirtual);
}

void Ledger::released(const Ids& pages) {
  move_pages("released", pages, {PageState::kRetiring}, PageState::kVirtual);
}

void Ledger::quarantine(const Ids& pages) {
  move_pages("quarantine", pages, {PageState::kPreparing, PageState::kRetiring},
             PageState::kQuarantined);
}

void Ledger::move_pages(const char* call, const Ids& pages, std::initializer_list<PageState> from,
                        PageState to) {
  Ids sorted = pages;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse(call, "page " + std::to_string(*twice) + " is named twice");
  for (const Id page : pages) {
    check_page(call, page);
    const PageState found = page_state_[at(page)];
    if (std::find(from.begin(), from.end(), found) != from.end()) continue;
    std::string allowed;
    for (const PageState s : from)
      allowed += (allowed.empty() ? "" : " or ") + std::string(name(s));
    refuse(call, "page " + std::to_string(page) + " is " + name(found) + ", must be " + allowed);
  }
  for (const Id page : pages) set_page_state(page, page_state_[at(page)], to);
}

void Ledger::set_page_state(Id page, PageState from, PageState to) {
  if (from == PageState::kOwned) {
    unindex(page);
    first_used_.clear(page);
    was_told_[at(page)] = 0;
  }
  if (from == PageState::kVirtual) virtual_.clear(page);
  page_state_[at(page)] = to;
  --pages_in_[static_cast<std::size_t>(from)];
  ++pages_in_[static_cast<std::size_t>(to)];
  if (to == PageState::kVirtual) virtual_.set(page);
  if (to == PageState::kOwned) index(page);
}

Ids Ledger::take_first_used() {
  Ids out;
  for (auto p = first_used_.first(); p >= 0; p = first_used_.next(p + 1)) {
    out.push_back(static_cast<Id>(p));
  }
  for (const Id page : out) {
    first_used_.clear(page);
    was_told_[at(page)] = 1;
  }
  return out;
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
  return std::int64_t{room - 1} * num_pages_ + page;
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
