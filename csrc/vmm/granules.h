// The memory behind equal pages of any byte size in one arena, counted by reference.
//
// Pages lie one after the other from the arena's start, in which nobody else maps anything, and
// need not be whole granules. Memory comes in spans (csrc/vmm/page_spans.h): a span is created for
// the first page that touches it, mapped by the first that is mapped, and unmapped and released
// with the last. Every span is in one known place at any time, so there is one way back for all
// failures: release() takes each from wherever it is. What the driver does not let go stays where
// it is and counts as created; another page that touches it may use it meanwhile.
//
// A page's own bytes, no others, read as zero when map() and a finish() after it have returned,
// whatever an earlier page left in a granule that stayed for a neighbour's sake. A neighbour that
// is mapped may be in use: nothing is done to its bytes, and a span that it holds is neither
// unmapped nor mapped again. What is inaccessible is every granule that no mapped page touches; the
// bytes of a page that is not held are accessible in a granule that a mapped neighbour shares.
//
// Threads: create(), unmap(), release() and close() belong to one thread at a time. map() may run
// beside them and beside itself, but not two calls on one page. Two that share a span: one waits,
// at most half a minute, for the other's driver call. Lifetime: memory that is created and not
// mapped goes only by release() and close(), or with the driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "vmm/arena.h"
#include "vmm/page_spans.h"

namespace kvcached::vmm {

class Granules {
 public:
  // InvalidArgument for pages of no bytes, and for an arena with no room for so many.
  Granules(std::shared_ptr<Arena> arena, Bytes page_bytes, std::size_t num_pages);

  Bytes page_bytes() const { return spans_.page_bytes(); }
  // That create() takes at most: with granules that are shared it takes less where neighbours have
  // memory.
  Bytes most_bytes() const { return spans_.most_bytes(); }
  // Each is one atomic read. A granule that is shared counts once.
  Bytes created_bytes() const { return created_; }
  Bytes mapped_bytes() const { return mapped_; }
  // Whether any memory is held for the page.
  bool holds(std::size_t page) const;

  // Takes memory for a page that holds none. On an error it holds none again, or in the worst case
  // what the driver would not take back. Quarantined if a granule that it touches is lost: the page
  // then holds it for good.
  void create(std::size_t page);
  // Maps all of a page that create() was called for, and begins to zero what may have been written.
  // On an error what is mapped stays so, and another call goes on from there; but after Quarantined
  // it can never be mapped.
  void map(std::size_t page);
  void finish() { arena_->driver().finish(); }  // see there
  // Unmaps what no other page holds and keeps the memory: map() makes the page's bytes read as zero
  // again. Goes on after driver errors; false if what only this page holds is mapped still.
  bool unmap(std::size_t page);
  // Gives back what no other page holds, going on after driver errors; false if the page still
  // holds anything. Such a page may be released again.
  bool release(std::size_t page);
  // Releases all pages and ends the use of the arena; true if nothing is left.
  bool close();

 private:
  enum class Place : std::uint8_t {
    kNowhere,  // no memory
    kHeld,     // the handle is ours
    kMapped,   // it is the arena's
    kLost,     // it is in the arena's quarantine
  };
  struct Memory {
    Handle handle;
    std::uint32_t pages = 0;  // that hold it; the creating thread's
    std::atomic<Place> place{Place::kNowhere};
    std::atomic<bool> written{false};  // maybe: it has been accessible
    std::timed_mutex mapping;          // held by who maps it
  };
  struct Page {  // a bit a span
    std::uint8_t held = 0;
    std::uint8_t stale = 0;  // may hold an earlier page's data
  };

  void check_page(std::size_t page) const;
  Memory& memory_at(const Span& span);  // of a span that has some
  Memory& obtain(const Span& span);
  void forget(const Span& span);
  void hold(std::size_t page, std::size_t index, const Span& span);
  void tie(std::size_t page, const Span& span);
  void untie(const Span& span, Memory& memory);
  void let_go(const Span& span, Memory& memory);
  void drop_gone(std::size_t page);

  const std::shared_ptr<Arena> arena_;
  const PageSpans spans_;
  std::vector<Page> pages_;
  std::atomic<Bytes> created_{0}, mapped_{0};
  std::mutex mutex_;                // guards the map, not the memory in it
  std::map<Bytes, Memory> memory_;  // by the span's offset
};

}  // namespace kvcached::vmm
