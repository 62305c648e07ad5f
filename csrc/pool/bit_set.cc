#include "pool/bit_set.h"

namespace kvcached::pool {

BitSet::BitSet(std::int64_t size) {
  do {
    size = (size + 63) / 64;
    levels_.emplace_back(static_cast<std::size_t>(size), 0);
  } while (size > 1);
}

void BitSet::set(std::int64_t i) {
  for (auto& level : levels_) {
    std::uint64_t& bits = level[word(i)];
    const bool was_empty = bits == 0;
    bits |= bit(i);
    if (!was_empty) return;
    i >>= 6;
  }
}

void BitSet::clear(std::int64_t i) {
  for (auto& level : levels_) {
    std::uint64_t& bits = level[word(i)];
    bits &= ~bit(i);
    if (bits != 0) return;
    i >>= 6;
  }
}

std::int64_t BitSet::next(std::int64_t from) const {
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    if (word(from) >= levels_[l].size()) return -1;
    const std::uint64_t bits = levels_[l][word(from)] & (~std::uint64_t{0} << (from & 63));
    if (bits == 0) {
      from = (from >> 6) + 1;
      continue;
    }
    std::int64_t at = (from & ~std::int64_t{63}) + __builtin_ctzll(bits);
    while (l-- > 0) at = at * 64 + __builtin_ctzll(levels_[l][static_cast<std::size_t>(at)]);
    return at;
  }
  return -1;
}

std::int64_t BitSet::last() const {
  if (levels_.back()[0] == 0) return -1;
  std::int64_t at = 0;
  for (std::size_t l = levels_.size(); l-- > 0;) {
    at = at * 64 + 63 - __builtin_clzll(levels_[l][static_cast<std::size_t>(at)]);
  }
  return at;
}

std::int64_t BitSet::count() const {
  std::int64_t n = 0;
  for (const std::uint64_t bits : levels_[0]) n += __builtin_popcountll(bits);
  return n;
}

bool BitSet::consistent() const {
  for (std::size_t l = 1; l < levels_.size(); ++l) {
    for (std::size_t w = 0; w < levels_[l - 1].size(); ++w) {
      const auto i = static_cast<std::int64_t>(w);
      const bool summary = (levels_[l][word(i)] & bit(i)) != 0;
      if (summary != (levels_[l - 1][w] != 0)) return false;
    }
  }
  return true;
}

}  // namespace kvcached::pool
