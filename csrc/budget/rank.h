// A rank's physical memory: takes it from the budget, creates, maps, retires and gives it back.
//
// One background thread serves the instance's segment: for the pages asked for it leases, creates
// handles, publishes the results, and then maps and zeroes ahead. The engine's thread calls only
// make_ready() before a step, which finds the pages mapped unless the background is late, and
// retire() behind a step's fence, which queues. While nobody wants memory the background keeps a
// pace (csrc/budget/pace.h); what a step or drain() waits for does not. Neither waits for the
// other's driver calls on pages that share no granule. No thread here knows Python. All waits have
// a deadline, but for close(), which waits for the background's driver call under way.
//
// Failures: what the driver refuses to create is refused; a page that it would not map is owned
// still; one that it would not take back is in quarantine: it keeps its lease until it goes at
// another retire() or at close(). Anything else ends the thread and is told by Segment::failure():
// among it a lost device, and a fence that does not pass within its deadline. Such memory is never
// unmapped, not even by close(): work that is queued may still use it.
// Fork: in a child, close() and the destructor do nothing, everything else with an effect raises.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "budget/pace.h"
#include "budget/rank_memory.h"
#include "budget/rank_orders.h"
#include "budget/segment.h"
#include "vmm/own_process.h"

namespace kvcached::budget {

struct RankCounters {
  std::uint64_t created = 0, released = 0;  // pages
  std::uint64_t mapped_ahead = 0;           // by the background thread
  std::uint64_t mapped_in_step = 0;         // by make_ready()
  std::uint64_t refused = 0;                // entries
};

class Rank {
 public:
  using Fences = std::vector<std::shared_ptr<vmm::Fence>>;
  // Longer than any step of an engine: past this the device hangs.
  static constexpr std::chrono::seconds kFenceDeadline{60};

  // Creates and maps page 0, whose memory stays until close(). Publishes `row` and `device`, then
  // serves. Raises BudgetError if the budget has no room for page 0, vmm::DriverError if the driver
  // fails, std::invalid_argument for extents or a device key that cannot be and for a rank that has
  // joined before; then nothing is held, and the row is still the caller's.
  Rank(std::shared_ptr<Segment> segment, std::uint32_t rank, std::shared_ptr<Budget> budget,
       std::string device, int row, std::shared_ptr<vmm::Driver> driver,
       std::vector<Extent> extents, Milliseconds fence_deadline = kFenceDeadline,
       const PaceTerms& pace = {});
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Every page has memory and is mapped when it returns. Raises std::logic_error, naming the page,
  // for one that this rank does not own or was told to retire; vmm::DriverError if mapping fails,
  // vmm::Quarantined if that cannot be mended.
  void make_ready(const std::vector<std::int32_t>& pages);
  // Once the fences have passed, the pages are not used by anything any more: they are unmapped and
  // released, and their lease ends, in order of the epochs, which never fall (std::logic_error).
  // Pages that this rank does not own are passed over, and so is page 0.
  void retire(const std::vector<std::int32_t>& pages, std::uint64_t epoch, Fences fences = {});
  // What a transaction asks for (kvcached_core/txn), done by the background thread in the order in
  // which it is asked; Outcomes tell. `take` leases and creates memory for pages that have none;
  // `unmap` unmaps owned pages that nothing uses any more, behind a fence that the caller saw pass,
  // and retains their memory. `settle` ends either for pages that it holds: some are owned from now
  // on, some are released. A page between the two is usable by nobody.
  // Which fences have passed is told by retire() of no pages, once outcomes_fd() was called.
  void take(std::uint64_t id, std::vector<std::int32_t> pages);
  void unmap(std::uint64_t id, std::vector<std::int32_t> pages);
  void settle(std::uint64_t id, std::vector<std::int32_t> own, std::vector<std::int32_t> release);
  // Readable while there are outcomes; closed with the rank.
  int outcomes_fd() { return orders_.open_fd(); }
  std::vector<Outcome> take_outcomes() { return orders_.take_outcomes(); }
  // Waits until everything retired so far is released; false after the deadline, or at once if the
  // background thread has ended.
  bool drain(Milliseconds deadline);

  Bytes page_bytes() const { return memory_.page_bytes(); }  // that one page may need
  Bytes mapped_bytes() const { return memory_.mapped_bytes(); }
  RankCounters counters() const;
  // Stops the thread, releases all memory and gives the row back, unless the driver keeps some.
  // Waits for fences that have not passed; std::runtime_error, and failure(), past the deadline.
  // Idempotent. In another process than the one that made it, does nothing.
  void close();

 private:
  // Mapped ahead in one go, to wait once for their zeros: what a step waits for at most if it needs
  // the first of them.
  static constexpr std::size_t kMappedAtOnce = 16;
  // A page that another thread maps is ready within microseconds; past this it is stuck.
  static constexpr std::chrono::seconds kMapDeadline{30};

  enum class State : std::uint8_t {
    kNone,
    kPrepared,  // has memory, by a transaction that is not decided
    kOwned,
    kMapping,
    kReady,
    kRetained,  // was unmapped, the same
    kReleasing,
    kQuarantined
  };
  struct Page {
    State state = State::kNone;
    State settled = State::kNone;  // before the work under way
    bool retired = false;          // queued in to_retire_
  };
  struct Retirement {
    std::deque<std::int32_t> pages;
    std::uint64_t epoch;
    Fences fences;  // background thread only: those that have not passed
    std::chrono::steady_clock::time_point waited_from{};  // the same; since it is the first
  };
  enum class Turn { kIdle, kWorked, kWaits };
  // What a forked child must leave alone: destroying either would wait for, or end, a thread that
  // is not there.
  struct Threading {
    std::condition_variable changed;
    std::thread thread;
  };

  bool lease_first_page();
  void take_first_page(const std::string& device);
  void start(const std::string& device);
  void serve();
  bool serve_growth();
  Turn serve_ready(bool in_haste);
  Turn serve_retirement(bool in_haste);
  bool fences_passed(Retirement& retirement);
  bool fences_end();
  std::string fence_failure(const vmm::Fence& fence, std::uint64_t epoch) const;
  bool serve_wish();  // whether anybody wants memory
  // Memory for pages `page_at(0)` to `page_at(count - 1)`; `tell(i, state)` says what became of
  // one: `as`, kNone or kQuarantined.
  template <typename PageAt, typename Tell>
  void acquire(std::uint32_t count, State as, const PageAt& page_at, const Tell& tell);
  bool serve_orders();
  Outcome carry_out(const Order& order);
  void take_pages(const Order& order, Outcome& outcome);
  void unmap_pages(const Order& order, Outcome& outcome);
  void settle_pages(const Order& order, Outcome& outcome);
  void begin_settling(std::int32_t page);
  bool wants(std::int32_t page);
  State create_page(std::int32_t page, State as);
  bool let_go(std::int32_t page, std::uint64_t epoch);
  void map_pages(const std::vector<std::int32_t>& pages);
  std::vector<std::int32_t> take_to_map();
  void check_usable(std::int32_t page) const;
  std::vector<std::int32_t> begin_mapping(const std::vector<std::int32_t>& pages);
  void map_unlocked(const std::vector<std::int32_t>& pages, std::unique_lock<std::mutex>& lock);
  void release_page(std::int32_t page, std::uint64_t epoch);
  void settle(std::int32_t page, State state, std::uint64_t epoch);
  void settle(std::int32_t page, State state);
  void settle_locked(std::int32_t page, State state, std::uint64_t epoch);
  void record(std::int32_t page, State from, State to, std::uint64_t epoch);
  bool settled(std::int32_t page) const { return pages_[page].state != State::kMapping; }
  void check_process() const;
  void check_page(std::int32_t page) const;
  std::string name() const { return "rank " + std::to_string(rank_); }

  const std::shared_ptr<Segment> segment_;
  const std::uint32_t rank_;
  const std::shared_ptr<Budget> budget_;
  const int row_;
  const vmm::OwnProcess process_;
  const Milliseconds fence_deadline_;
  RankMemory memory_;  // a page there belongs to the thread that set kMapping or kReleasing

  mutable std::mutex mutex_;  // guards all below; never held across a driver call
  std::unique_ptr<Threading> threading_;
  std::vector<Page> pages_;
  std::deque<std::int32_t> to_map_;
  std::deque<Retirement> to_retire_;
  std::uint64_t last_epoch_ = 0;
  RankCounters counters_;
  RankOrders orders_;  // has a lock of its own
  bool ended_ = false, closed_ = false;

  std::atomic<bool> stopping_{false};
  std::atomic<int> draining_{0};  // threads in drain()
  // Background thread only:
  std::uint32_t grow_tail_;
  Pace pace_;
};

}  // namespace kvcached::budget
