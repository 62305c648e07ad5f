// A rank's physical memory: takes it from the budget, creates, maps, retires and gives it back.
//
// One background thread serves the instance's segment: for each page asked for it leases, creates
// handles, publishes the result, and then maps and zeroes ahead. The engine's thread calls only
// make_ready() before a step, which finds the pages mapped unless the background is late, and
// retire() behind a step's fence, which queues. Neither waits for the other's driver calls on
// other pages. No thread here knows Python. All waits have a deadline.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "budget/budget.h"
#include "budget/segment.h"
#include "vmm/arena.h"

namespace kvcached::budget {

// The part of one tensor that belongs to a page: [page * bytes, (page + 1) * bytes) of `arena`.
struct Extent {
  std::shared_ptr<vmm::Arena> arena;
  Bytes bytes;  // whole granules
};

struct RankCounters {
  std::uint64_t created = 0, released = 0;  // pages
  std::uint64_t mapped_ahead = 0;           // by the background thread
  std::uint64_t mapped_in_step = 0;         // by make_ready()
  std::uint64_t refused = 0;                // entries
};

class Rank {
 public:
  // Creates and maps page 0, whose memory stays until close(); raises BudgetError if the budget has
  // no room for it. Publishes `row` and `device`, then serves.
  Rank(std::shared_ptr<Segment> segment, std::uint32_t rank, std::shared_ptr<Budget> budget,
       std::string device, int row, std::shared_ptr<vmm::Driver> driver,
       std::vector<Extent> extents);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Every page has memory and is mapped when it returns. Raises std::logic_error, naming the page,
  // for one that this rank does not own; vmm::DriverError if mapping fails.
  void make_ready(const std::vector<std::int32_t>& pages);
  // The pages are not used by anything any more: they are unmapped and released, and their lease
  // ends, in order of the epochs. Pages that this rank does not own are passed over.
  void retire(const std::vector<std::int32_t>& pages, std::uint64_t epoch);
  // Waits until everything retired so far is released; false after the deadline.
  bool drain(Milliseconds deadline);

  Bytes page_bytes() const { return page_bytes_; }
  Bytes mapped_bytes() const;
  RankCounters counters() const;
  // Stops the thread, releases all memory and gives the row back. Idempotent. In another process
  // than the one that made it, does nothing.
  void close();

 private:
  enum class State : std::uint8_t { kNone, kOwned, kMapping, kReady, kRetiring, kQuarantined };
  struct Page {
    State state = State::kNone;
    std::vector<vmm::Handle> handles;  // one an extent while owned
  };
  struct Retirement {
    std::vector<std::int32_t> pages;
    std::uint64_t epoch;
  };

  void serve();
  bool serve_growth();
  bool serve_ready();
  bool serve_retirement();
  void serve_wish();
  bool acquire(std::int32_t page);
  Grant lease();
  std::vector<vmm::Handle> create_handles();
  void map_page(std::int32_t page);
  void release_page(std::int32_t page);
  void discard(std::vector<vmm::Handle>& handles);
  bool give_back();
  void publish_bytes();

  const std::shared_ptr<Segment> segment_;
  const std::uint32_t rank_;
  const std::shared_ptr<Budget> budget_;
  const int row_;
  const std::shared_ptr<vmm::Driver> driver_;
  const std::vector<Extent> extents_;
  Bytes page_bytes_ = 0;
  const pid_t pid_;

  mutable std::mutex mutex_;  // guards all below; never held across a driver call or a wait
  std::condition_variable changed_;
  std::vector<Page> pages_;
  std::deque<std::int32_t> to_map_;
  std::deque<Retirement> to_retire_;
  RankCounters counters_;
  Bytes mapped_ = 0, created_ = 0;
  bool stopping_ = false, closed_ = false;

  std::uint32_t grow_tail_ = 0;  // background thread only
  std::thread thread_;
};

}  // namespace kvcached::budget
