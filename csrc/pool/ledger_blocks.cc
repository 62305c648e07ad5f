// The ledger's edges of blocks.
#include <algorithm>
#include <string>

#include "pool/ledger.h"
#include "pool/refuse.h"

namespace kvcached::pool {
namespace {

std::string block_is(Id block, BlockState state) {
  return "block " + std::to_string(block) + " is " + name(state);
}

}  // namespace

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
  const auto take_from = [&](Id page) {
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
  };
  while (wanted - out.size() >= at(blocks_per_page_) && empty_pages_ > 0) {
    take_from(static_cast<Id>(empty_.first()));
  }
  while (out.size() < wanted && num_free_ > 0) {
    take_from(static_cast<Id>(by_room_.first() % num_pages_));
  }
  PageEdit edit(*this);
  while (out.size() < wanted) {
    const Id block = lru_.front();
    const std::size_t page = edit.open(page_at(block));
    lru_.remove(block);
    state_[at(block)] = BlockState::kUsed;
    --cached_[page];
    ++used_[page];
    --num_cached_;
    ++num_used_;
    note_use(static_cast<Id>(page));
    out.push_back(block);
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

void Ledger::reset_cached() { uncache(lru_ids()); }

}  // namespace kvcached::pool
