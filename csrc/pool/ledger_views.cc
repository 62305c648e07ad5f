// The ledger's questions that change nothing.
#include <algorithm>
#include <tuple>

#include "pool/ledger.h"
#include "pool/refuse.h"

namespace kvcached::pool {

std::int64_t Ledger::obtainable(std::int64_t most_pages, std::int64_t coming_pages) const {
  check_count("obtainable", "most_pages", most_pages);
  check_count("obtainable", "coming_pages", coming_pages);
  const std::int64_t growable = std::clamp<std::int64_t>(
      most_pages - pages(PageState::kOwned) - std::min(coming_pages, std::int64_t{num_pages_}), 0,
      pages(PageState::kVirtual));
  const auto pages = growable + coming_pages;
  const std::int64_t unused = std::int64_t{num_blocks_} - 1 - num_used_;
  return std::min(available() + std::min(pages, std::int64_t{num_pages_}) * blocks_per_page_,
                  unused);
}

BlockState Ledger::state_of(Id block) const {
  check_block("state_of", block);
  return state_[at(block)];
}

PageState Ledger::page_state(Id page) const {
  check_page("page_state", page);
  return page_state_[at(page)];
}

Id Ledger::block_page(Id block) const {
  check_block("block_page", block);
  return page_at(block);
}

Ids Ledger::pages_of(const Ids& blocks) const {
  Ids out;
  out.reserve(blocks.size());
  for (const Id block : blocks) {
    check_block("pages_of", block);
    const Id page = page_at(block);
    if (out.empty() || out.back() != page) out.push_back(page);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Empty pages go first while a whole one is wanted; of the rest, a page stays the first until it is
// full, so pages leave by_room_ in its own order.
Ids Ledger::free_ids() const {
  Ids out;
  out.reserve(at(available()));
  const auto add = [&](Id page) {
    const std::int64_t end = end_of(page);
    for (auto b = free_.next(begin_of(page)); b >= 0 && b < end; b = free_.next(b + 1)) {
      out.push_back(static_cast<Id>(b));
    }
  };
  std::int64_t whole = 0;  // empty pages before this one are added already
  for (auto p = empty_.first(); p >= 0; p = empty_.next(p + 1)) {
    if (at(available()) - out.size() < at(blocks_per_page_)) break;
    add(static_cast<Id>(p));
    whole = p + 1;
  }
  for (auto key = by_room_.first(); key >= 0; key = by_room_.next(key + 1)) {
    const auto page = static_cast<Id>(key % num_pages_);
    if (!empty_.test(page) || page >= whole) add(page);
  }
  for (Id b = lru_.front(); b != lru_.end(); b = lru_.next(b)) out.push_back(b);
  return out;
}

Ids Ledger::victims_for_pages(std::int64_t n_pages) const {
  check_count("victims_for_pages", "n_pages", n_pages);
  const auto n = std::min(n_pages, std::int64_t{cached_only_pages_});
  if (n == 0) return {};
  std::vector<std::tuple<Id, std::uint64_t, Id>> pages;  // cached blocks, latest stamp, page
  pages.reserve(at(cached_only_pages_));
  for (Id page = 1; page < num_pages_; ++page) {
    if (used_[at(page)] > 0 || cached_[at(page)] == 0) continue;
    std::uint64_t latest = 0;
    for (auto b = begin_of(page); b < end_of(page); ++b) {
      const auto block = static_cast<Id>(b);
      if (state_[at(block)] == BlockState::kCached) latest = std::max(latest, lru_.stamp(block));
    }
    pages.emplace_back(cached_[at(page)], latest, page);
  }
  std::partial_sort(pages.begin(), pages.begin() + n, pages.end());
  Ids out;
  for (std::int64_t i = 0; i < n; ++i) {
    const Id page = std::get<2>(pages[static_cast<std::size_t>(i)]);
    for (auto b = begin_of(page); b < end_of(page); ++b) {
      const auto block = static_cast<Id>(b);
      if (state_[at(block)] == BlockState::kCached) out.push_back(block);
    }
  }
  return out;
}

bool Ledger::is_over_bound(std::int64_t max_pages) const {
  check_count("is_over_bound", "max_pages", max_pages);
  return max_pages == 0 ? num_cached_ > 0 : cached_only_pages_ > max_pages;
}

Ids Ledger::victims_over_bound(std::int64_t max_pages) const {
  check_count("victims_over_bound", "max_pages", max_pages);
  if (max_pages == 0) return lru_ids();
  return victims_for_pages(std::max<std::int64_t>(0, cached_only_pages_ - max_pages));
}

Ids Ledger::lru_ids() const {
  Ids out;
  out.reserve(at(num_cached_));
  for (Id b = lru_.front(); b != lru_.end(); b = lru_.next(b)) out.push_back(b);
  return out;
}

}  // namespace kvcached::pool
