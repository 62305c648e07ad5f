// The physical memory behind a rank's pages, piece by piece, and its account in the budget.
//
// A page has one piece an extent. Every piece is in one known place at any time, so there is one
// way back for all failures: release() takes each piece from wherever it is. What the driver does
// not let go stays where it is, counts as created and keeps its lease.
// At all times: the row's created == created_bytes(), its lease == created_bytes() + what lease()
// promised and nobody has used yet.
//
// Threads: lease(), unlease(), create() and close() belong to one thread at a time. Calls on
// different pages may run at the same time, those on one page may not.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "budget/budget.h"
#include "vmm/arena.h"

namespace kvcached::budget {

// The part of one tensor that belongs to a page: [page * bytes, (page + 1) * bytes) of `arena`,
// in which nobody else maps anything.
struct Extent {
  std::shared_ptr<vmm::Arena> arena;
  Bytes bytes;  // whole granules
};

class RankMemory {
 public:
  // Raises std::invalid_argument for no extents, for extents that are no whole granules and for
  // arenas with no room for `num_pages` of them.
  RankMemory(std::shared_ptr<Budget> budget, int row, std::shared_ptr<vmm::Driver> driver,
             std::vector<Extent> extents, std::size_t num_pages);

  Bytes page_bytes() const { return page_bytes_; }
  Bytes mapped_bytes() const { return mapped_; }
  Bytes created_bytes() const { return created_; }
  // Whether any piece of the page has memory.
  bool holds(std::int32_t page) const { return !pages_[page].empty(); }

  // Has up to `pages` pages promised; returns how many. A refusal of all is tried again with fewer;
  // a busy table is tried again for a second, or until `stop`.
  std::uint32_t lease(std::uint32_t pages, const std::atomic<bool>& stop);
  void unlease(std::uint32_t pages);
  // Turns a promise into memory for a page that holds none. On an error the promise is gone and the
  // page holds nothing, or in the worst case what the driver would not take back.
  void create(std::int32_t page);
  // Maps all pieces. On an error those mapped so far stay so, and another call goes on from there;
  // but after vmm::Quarantined a piece can never be mapped.
  void map(std::int32_t page);
  // Unmaps and releases all pieces, going on after driver errors; false if any is left. Such a page
  // may be released again.
  bool release(std::int32_t page);
  // Releases all pages, ends the use of all arenas and gives promises back; true if nothing is
  // left.
  bool close();

 private:
  enum class Place : std::uint8_t {
    kNowhere,  // no memory
    kHeld,     // the handle is ours
    kMapped,   // it is the arena's
    kLost,     // it is in the arena's quarantine
  };
  struct Piece {
    vmm::Handle handle;
    Place place = Place::kNowhere;
  };

  Grant try_lease(Bytes bytes);
  void unlease_bytes(Bytes bytes);
  void take_back(std::size_t extent, std::int32_t page, Piece& piece);
  void forget(Bytes bytes);
  Bytes release_arena(std::size_t extent);

  const std::shared_ptr<Budget> budget_;
  const int row_;
  const std::shared_ptr<vmm::Driver> driver_;
  const std::vector<Extent> extents_;
  Bytes page_bytes_ = 0;
  std::vector<std::vector<Piece>> pages_;  // empty: holds nothing
  Bytes promised_ = 0;                     // leased, not created
  std::atomic<Bytes> mapped_{0}, created_{0};
};

}  // namespace kvcached::budget
