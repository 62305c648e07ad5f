// Ledger::check_integrity(): what the ledger keeps up to date, against the states it follows from.
#include <stdexcept>
#include <string>

#include "pool/ledger.h"

namespace kvcached::pool {
namespace {

[[noreturn]] void broken(const std::string& what) {
  throw std::logic_error("ledger integrity: " + what);
}

void expect_equal(const std::string& what, std::int64_t kept, std::int64_t counted) {
  if (kept == counted) return;
  broken(what + " is kept as " + std::to_string(kept) + ", counted " + std::to_string(counted));
}

void expect_sound(const char* what, const BitSet& set) {
  if (!set.consistent()) broken(std::string("the levels of the set ") + what + " disagree");
}

}  // namespace

void Ledger::check_integrity() const {
  expect_sound("free", free_);
  expect_sound("by_room", by_room_);
  expect_sound("empty", empty_);
  expect_sound("virtual", virtual_);
  expect_sound("first_used", first_used_);
  check_states();
  check_pages();
  check_lru();
  check_totals();
}

void Ledger::check_states() const {
  for (Id p = 0; p < num_pages_; ++p) {
    if (at(static_cast<Id>(page_state_[at(p)])) >= kPageStates) {
      broken("page " + std::to_string(p) + " has no legal state");
    }
  }
  for (Id b = 0; b < num_blocks_; ++b) {
    const std::string block = "block " + std::to_string(b);
    const BlockState state = state_[at(b)];
    if (state > BlockState::kFree) broken(block + " has no legal state");
    if ((b == 0) != (state == BlockState::kNull)) broken(block + " is " + name(state));
    const PageState page = page_state_[at(page_at(b))];
    if (page != PageState::kOwned && state != BlockState::kFree) {
      broken(block + " is " + name(state) + " on page " + std::to_string(page_at(b)) +
             ", which is " + name(page));
    }
    expect_equal(block + " in the set free", free_.test(b), state == BlockState::kFree);
  }
}

void Ledger::check_pages() const {
  std::int64_t with_room = 0, empty = 0, in_virtual = 0, cached_only = 0, to_tell = 0;
  if (page_state_[0] != PageState::kOwned)
    broken("the null page is " + std::string(name(page_state_[0])));
  for (Id p = 0; p < num_pages_; ++p) {
    const std::string page = "page " + std::to_string(p);
    Id used = 0, cached = 0, free = 0;
    for (auto b = begin_of(p); b < end_of(p); ++b) {
      const BlockState state = state_[at(static_cast<Id>(b))];
      used += state == BlockState::kUsed;
      cached += state == BlockState::kCached;
      free += state == BlockState::kFree;
    }
    expect_equal("used blocks of " + page, used_[at(p)], used);
    expect_equal("cached blocks of " + page, cached_[at(p)], cached);
    const bool owned = page_state_[at(p)] == PageState::kOwned;
    const bool is_empty = owned && p != 0 && used + cached == 0;
    if (free > 0) expect_equal(page + " in its bucket", by_room_.test(room_key(p, free)), owned);
    expect_equal(page + " in the set empty", empty_.test(p), is_empty);
    expect_equal(page + " in the set virtual", virtual_.test(p),
                 page_state_[at(p)] == PageState::kVirtual);
    if (first_used_.test(p) && (!owned || was_told_[at(p)] != 0)) {
      broken(page + " waits to be told as first used, but is " + name(page_state_[at(p)]) +
             (was_told_[at(p)] != 0 ? " and was told" : ""));
    }
    if (was_told_[at(p)] != 0 && !owned) broken(page + " counts as told but is not owned");
    if (used > 0 && was_told_[at(p)] == 0 && !first_used_.test(p)) {
      broken(page + " has used blocks but neither was nor will be told as first used");
    }
    with_room += owned && free > 0;
    empty += is_empty;
    in_virtual += page_state_[at(p)] == PageState::kVirtual;
    cached_only += owned && p != 0 && used == 0 && cached > 0;
    to_tell += first_used_.test(p);
  }
  expect_equal("members of all buckets", by_room_.count(), with_room);
  expect_equal("members of the set empty", empty_.count(), empty);
  expect_equal("members of the set virtual", virtual_.count(), in_virtual);
  expect_equal("members of the set first_used", first_used_.count(), to_tell);
  expect_equal("empty_pages", empty_pages_, empty);
  expect_equal("cached_only_pages", cached_only_pages_, cached_only);
}

void Ledger::check_lru() const {
  std::int64_t length = 0;
  std::uint64_t latest = 0;
  Id before = lru_.end();
  for (Id b = lru_.front(); b != lru_.end(); before = b, b = lru_.next(b)) {
    const std::string block = "block " + std::to_string(b) + " in the order of use";
    if (state_[at(b)] != BlockState::kCached) broken(block + " is " + name(state_[at(b)]));
    expect_equal("the one before " + block, lru_.prev(b), before);
    if (lru_.stamp(b) <= latest) broken(block + " is older than the one before it");
    latest = lru_.stamp(b);
    ++length;  // ends: a ring that misses the sentinel fails on its stamps
  }
  expect_equal("the end of the order of use", lru_.back(), before);
  expect_equal("num_cached", num_cached_, length);
}

void Ledger::check_totals() const {
  std::array<std::int64_t, kPageStates> pages{}, blocks{};
  for (Id p = 0; p < num_pages_; ++p) {
    const auto s = static_cast<std::size_t>(page_state_[at(p)]);
    ++pages[s];
    blocks[s] += end_of(p) - begin_of(p);
  }
  for (std::size_t s = 0; s < kPageStates; ++s) {
    expect_equal(std::string("pages that are ") + name(static_cast<PageState>(s)), pages_in_[s],
                 pages[s]);
  }
  std::int64_t used = 0, cached = 0, free = 0;
  for (Id b = 0; b < num_blocks_; ++b) {
    used += state_[at(b)] == BlockState::kUsed;
    cached += state_[at(b)] == BlockState::kCached;
    free += state_[at(b)] == BlockState::kFree && page_state_[at(page_at(b))] == PageState::kOwned;
  }
  expect_equal("num_used", num_used_, used);
  expect_equal("num_cached", num_cached_, cached);
  expect_equal("num_free", num_free_, free);
  const auto of = [&blocks](PageState s) { return blocks[static_cast<std::size_t>(s)]; };
  expect_equal("the number of blocks", num_blocks_,
               std::int64_t{num_used_} + num_cached_ + num_free_ + 1 + of(PageState::kVirtual) +
                   of(PageState::kPreparing) + of(PageState::kRetiring) +
                   of(PageState::kQuarantined));
}

}  // namespace kvcached::pool
