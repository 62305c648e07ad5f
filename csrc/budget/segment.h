// The shared memory of one instance: how its scheduler half and its ranks on one host agree.
//
// The scheduler half asks for pages through a ring of page ids; every rank resolves the entries in
// order, as owned (it holds the memory) or refused, and the scheduler half takes the minimum over
// all ranks. Memory goes back through the engine's own step: an update names pages to retire and an
// epoch, and each rank publishes the last epoch whose pages it has released.
//
// One writer a field: the scheduler half writes the header's fields, a rank its own RankPart. Each
// keeps its last page transitions beside (recorder.h). All waits have a deadline. Sequence numbers
// are 32 bits and wrap. The file is made under a temporary name and renamed; whoever made it locks
// and removes it (kvcached_core/budget/instance.py).
// Fork: in a child, an inherited object can be read; what writes raises std::logic_error.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "budget/budget.h"
#include "budget/recorder.h"
#include "vmm/own_process.h"

namespace kvcached::budget {

using Milliseconds = std::chrono::milliseconds;

enum class PageState : std::uint8_t { kVirtual = 0, kOwned = 1, kQuarantined = 2 };
enum class Result : std::uint8_t { kPending = 0, kOwned = 1, kRefused = 2 };

inline constexpr std::size_t kMaxRanks = 64;
inline constexpr std::size_t kFailureText = 512;

struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t num_pages;
  std::uint32_t num_ranks;
  std::uint32_t ring_size;                          // a power of two, at least num_pages
  std::int64_t pid;                                 // of the maker; for display, as the times are
  std::uint64_t made_wall_ns, made_monotonic_ns;    // one moment, by two clocks
  alignas(64) std::atomic<std::uint32_t> doorbell;  // futex: the scheduler half did something
  std::atomic<std::uint32_t> grow_head;             // entries published, modulo 2^32
  std::atomic<std::uint32_t> wish_pages;            // pages lacking for a request that waits
  std::atomic<std::uint32_t> idle_pages;            // pages that no request uses
  alignas(64) std::atomic<std::uint32_t> progress;  // futex: a rank did something
};

struct RankPart {
  alignas(64) std::atomic<std::uint32_t> joined;     // 1 once `row` and `device` are set
  std::int32_t row;                                  // row in the device's record
  char device[64];                                   // key of the device's record
  alignas(64) std::atomic<std::uint32_t> grow_done;  // entries resolved, modulo 2^32
  std::atomic<std::uint64_t> released_epoch;
  std::atomic<std::uint64_t> mapped_bytes;
  std::atomic<std::uint64_t> created_bytes;
  std::atomic<std::uint32_t> failed;  // 1 once `failure` is set: data may be at risk
  char failure[kFailureText];
  // What all members had created, and what the device had free after that; once `sampled`.
  alignas(64) std::atomic<std::uint64_t> created_before;
  std::atomic<std::uint64_t> device_free;
  std::atomic<std::uint32_t> sampled;
};

// What became of entries since the last look.
struct Resolved {
  std::vector<std::int32_t> owned;    // by all ranks
  std::vector<std::int32_t> refused;  // by all ranks; nobody holds memory
  std::vector<std::int32_t> partial;  // some rank owns it, or what its driver keeps: retire them
};

class Segment {
 public:
  // Makes the file, in the place of one that has the name. Raises std::system_error (no space),
  // std::invalid_argument for numbers that cannot be.
  static std::shared_ptr<Segment> create(const std::string& path, std::uint32_t num_pages,
                                         std::uint32_t num_ranks);
  // Maps an existing one; raises std::runtime_error for another version or a torn file. A scheduler
  // half opens it before its first request: what was asked for before is not reported to it.
  static std::shared_ptr<Segment> open(const std::string& path);
  // The same to look at only: neither the file nor who uses it notices.
  static std::shared_ptr<const Segment> view(const std::string& path);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const std::string& path() const { return path_; }
  std::uint32_t num_pages() const { return header_->num_pages; }
  std::uint32_t num_ranks() const { return header_->num_ranks; }

  // --- scheduler half; one thread ---
  // Publishes entries. Raises std::logic_error if the ring, which has room for num_pages, has none
  // left, std::out_of_range for a page that there is not; then none is published.
  void request(const std::vector<std::int32_t>& pages);
  Resolved poll();
  std::uint32_t outstanding() const { return head_ - tail_; }
  std::uint64_t released_epoch() const;  // the smallest over all ranks
  PageState page_state(std::uint32_t rank, std::int32_t page) const;
  bool is_quarantined(std::int32_t page) const;  // by any rank
  // Rings only if the number is another than before.
  void set_wish(std::uint32_t pages);
  // Rings nobody, so that it may change in each step: the ranks read it when they are rung, and
  // once a second.
  void set_idle(std::uint32_t pages);
  // Makes the ranks look; from any thread.
  void ring_ranks();
  Sample sample(std::uint32_t rank) const;  // the rank's last one
  // Records what request() and poll() do not: what becomes of pages that an update names.
  void record(const std::vector<std::int32_t>& pages, TracedState from, TracedState to,
              std::uint64_t epoch);
  std::string failure() const;  // of any rank; empty if none
  std::uint32_t progress() const;
  // Blocks until progress() differs from `seen` or the deadline passes; returns it.
  std::uint32_t wait_progress(std::uint32_t seen, Milliseconds deadline) const;

  // --- a rank's half ---
  SegmentHeader& header() { return *header_; }
  RankPart& part(std::uint32_t rank) const;
  std::int32_t entry(std::uint32_t sequence) const;
  void resolve(std::uint32_t rank, std::uint32_t sequence, Result result);
  void set_page_state(std::uint32_t rank, std::int32_t page, PageState state);
  void set_sample(std::uint32_t rank, const Sample& sample);
  void ring_scheduler();
  void record(std::uint32_t rank, std::int32_t page, TracedState from, TracedState to,
              std::uint64_t epoch);
  void fail(std::uint32_t rank, const std::string& text);

  // --- anybody ---
  const SegmentHeader& header() const { return *header_; }
  std::string failure(std::uint32_t rank) const;  // empty if none
  // The last `most` transitions of each writer, all of them by time.
  Trace trace(std::size_t most) const;

 private:
  static std::shared_ptr<Segment> attach(const std::string& path, bool writable);
  Segment(std::string path, void* base, std::size_t size);
  void check_process() const;
  void check_page(std::int32_t page) const;
  std::atomic<std::uint32_t>* ring() const;
  std::atomic<std::uint8_t>* results(std::uint32_t rank) const;
  std::atomic<std::uint8_t>* states(std::uint32_t rank) const;
  RecorderRing& recorder(std::uint32_t writer) const;  // 0: the scheduler half, 1 + n: rank n

  const vmm::OwnProcess process_;
  std::string path_;
  void* base_;
  std::size_t size_;
  SegmentHeader* header_;
  std::uint32_t head_ = 0;   // scheduler half: entries published
  std::uint32_t tail_ = 0;   // scheduler half: entries resolved and reported
  std::uint64_t epoch_ = 0;  // scheduler half: the last one recorded
};

}  // namespace kvcached::budget
