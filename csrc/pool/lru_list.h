// The order of use of block ids: a doubly linked list threaded through arrays, so that a block is
// appended, and removed from anywhere, in O(1) and without allocation.
//
// Every append gets a number higher than all before it; along the list the numbers rise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcached::pool {

class LruList {
 public:
  explicit LruList(std::int32_t capacity)  // for the ids 0 .. capacity-1
      : end_(capacity),
        next_(static_cast<std::size_t>(capacity) + 1, capacity),
        prev_(static_cast<std::size_t>(capacity) + 1, capacity),
        stamp_(static_cast<std::size_t>(capacity), 0) {}

  std::int32_t end() const { return end_; }  // what front(), next() and prev() give past either end
  std::int32_t front() const { return next_[at(end_)]; }  // the least recently used
  std::int32_t back() const { return prev_[at(end_)]; }
  std::int32_t next(std::int32_t id) const { return next_[at(id)]; }
  std::int32_t prev(std::int32_t id) const { return prev_[at(id)]; }
  std::uint64_t stamp(std::int32_t id) const { return stamp_[at(id)]; }  // of its last append

  void append(std::int32_t id) {  // must not be in the list
    stamp_[at(id)] = ++appends_;
    link(back(), id);
    link(id, end_);
  }
  void remove(std::int32_t id) { link(prev(id), next(id)); }  // must be in the list

 private:
  static std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }
  void link(std::int32_t a, std::int32_t b) {
    next_[at(a)] = b;
    prev_[at(b)] = a;
  }

  std::int32_t end_;  // a sentinel that closes the ring
  std::vector<std::int32_t> next_, prev_;
  std::vector<std::uint64_t> stamp_;
  std::uint64_t appends_ = 0;
};

}  // namespace kvcached::pool
