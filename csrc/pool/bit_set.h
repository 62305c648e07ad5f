// A set of the integers 0 .. size-1 that finds its least and its greatest member at once.
//
// Level 0 holds one bit a member; bit w of level l+1 says whether word w of level l is non-zero. So
// every operation but count() and consistent() touches at most log64(size) words (3 up to 262,144
// members, 4 up to 16 million), and most touch one. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcached::pool {

class BitSet {
 public:
  explicit BitSet(std::int64_t size);  // size >= 1; empty at first

  bool test(std::int64_t i) const { return (levels_[0][word(i)] & bit(i)) != 0; }
  void set(std::int64_t i);    // does nothing if i is a member
  void clear(std::int64_t i);  // does nothing if i is no member

  std::int64_t next(std::int64_t from) const;  // least member >= from, or -1
  std::int64_t first() const { return next(0); }
  std::int64_t last() const;  // greatest member, or -1

  std::int64_t count() const;  // O(size / 64)
  bool consistent() const;     // whether all levels agree; O(size / 64)

 private:
  static std::size_t word(std::int64_t i) { return static_cast<std::size_t>(i >> 6); }
  static std::uint64_t bit(std::int64_t i) { return std::uint64_t{1} << (i & 63); }

  std::vector<std::vector<std::uint64_t>> levels_;  // the last one is a single word
};

}  // namespace kvcached::pool
