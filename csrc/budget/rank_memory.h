// The physical memory behind a rank's pages, extent by extent, and its account in the budget.
//
// A page has an extent in every tensor, of any byte size; where that is no whole granules, pages
// that are neighbours share some (csrc/vmm/granules.h). All is counted in granules, each once. What
// the driver does not let go counts as created and keeps its lease.
// At all times: the row's created == created_bytes(), its lease == created_bytes() + what lease()
// promised and nobody has used yet.
//
// Two sizes of a page. page_bytes() is the granules that it can touch: what it may need with no
// neighbour to share with. Promises, wants, floors and limits are reckoned with it, so that no
// lease is short and no limit exceeded; what creating did not need is given back at once.
// own_bytes() is what belongs to it: the part of a lease that goes with it, on average, so idle
// memory, which neighbours hope for, is reckoned with it. For whole granules they are the same.
//
// Threads: lease(), unlease(), create(), unmap(), release() and close() belong to one thread at a
// time. map() may run beside them and beside itself, but no two calls on one page at the same time.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "budget/budget.h"
#include "vmm/granules.h"

namespace kvcached::budget {

// The part of one tensor that belongs to a page: [page * bytes, (page + 1) * bytes) of `arena`,
// in which nobody else maps anything.
struct Extent {
  std::shared_ptr<vmm::Arena> arena;
  Bytes bytes;
};

class RankMemory {
 public:
  // Raises std::invalid_argument for no extents, for extents of no bytes and for arenas with no
  // room for `num_pages` of them.
  RankMemory(std::shared_ptr<Budget> budget, int row, std::shared_ptr<vmm::Driver> driver,
             const std::vector<Extent>& extents, std::size_t num_pages);

  Bytes page_bytes() const { return page_bytes_; }
  Bytes own_bytes() const { return own_bytes_; }
  Bytes mapped_bytes() const;
  Bytes created_bytes() const { return created_; }
  // Whether any memory is held for the page.
  bool holds(std::int32_t page) const;

  // Looks at the device; false, and the last look stands, where its driver cannot tell.
  bool look();
  const Sample& last_look() const { return sample_; }
  // Has up to `pages` pages promised, page_bytes() each; returns how many. A refusal of all is
  // tried again with fewer; a busy table is tried again for a second, or until `stop`.
  std::uint32_t lease(std::uint32_t pages, const std::atomic<bool>& stop);
  void unlease(std::uint32_t pages);
  // Turns a promise into memory for a page that holds none, and gives back what it does not need.
  // On an error the promise is gone and the page holds nothing, or in the worst case what the
  // driver would not take back or has lost.
  void create(std::int32_t page);
  // Maps the page, whose own bytes read as zero when a finish() after it has returned. On an error
  // what is mapped so far stays so, and another call goes on from there; but after
  // vmm::Quarantined it can never be mapped.
  void map(std::int32_t page);
  void finish() { driver_->finish(); }
  // Unmaps what no other page needs and keeps the memory, which map() makes zero again; false if
  // any is mapped still that only this page needs.
  bool unmap(std::int32_t page);
  // Gives back what no other page needs, going on after driver errors; false if any is left. Such a
  // page may be released again.
  bool release(std::int32_t page);
  // Leaves everything mapped, held and leased until the process ends: for memory that work of a
  // device may still use. Nothing else may be called afterwards.
  void abandon();
  // See vmm::Driver.
  void adopt_thread() { driver_->adopt_thread(); }
  void check_alive() const { driver_->check_alive(); }
  // Releases all pages, ends the use of all arenas and gives promises back; true if nothing is
  // left.
  bool close();

 private:
  Grant try_lease(Bytes bytes);
  void unlease_bytes(Bytes bytes);
  void note_created(Bytes bytes);
  void note_released(Bytes bytes);

  const std::shared_ptr<Budget> budget_;
  const int row_;
  const std::shared_ptr<vmm::Driver> driver_;
  std::deque<vmm::Granules> granules_;  // by extent
  Bytes page_bytes_ = 0, own_bytes_ = 0;
  Sample sample_;
  Bytes promised_ = 0;  // leased, not created
  std::atomic<Bytes> created_{0};
};

}  // namespace kvcached::budget
