// The last page transitions of one writer, readable after every process of the engine has died.
//
// A ring of fixed-size records in shared memory: the newest overwrites the oldest. A record's
// sequence is cleared first and written last, so one that its writer did not finish, because it was
// killed, is told from a whole one. Writing is a clock read a batch and four stores a page; no
// system call (the clock is the vDSO's). One writer at a time, in whatever threads; any number of
// readers in any process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcached::budget {

inline constexpr std::size_t kRecords = 4096;
inline constexpr std::uint16_t kSchedulerHalf = 0xFFFF;  // as `who`; else the number of a rank

// A page as its writer sees it: the scheduler half knows the global states, a rank has memory
// (owned), has it mapped, or has none (virtual).
enum class TracedState : std::uint8_t {
  kVirtual,
  kPreparing,
  kOwned,
  kMapped,
  kRetiring,
  kQuarantined,
};
inline constexpr std::size_t kTracedStates = 6;
const char* name(TracedState state);

struct Transition {
  std::uint64_t sequence = 0;  // from 1, without gaps, a count for each writer
  std::uint64_t time_ns = 0;   // CLOCK_MONOTONIC
  std::uint64_t epoch = 0;     // of the update that caused it, or the last one before it
  std::uint32_t page = 0;
  std::uint16_t who = 0;
  TracedState from = TracedState::kVirtual, to = TracedState::kVirtual;
};

struct Trace {
  std::vector<Transition> transitions;  // by sequence
  std::size_t torn = 0;                 // records that were being written
};

// As it lies in the segment: all zeros when nothing was written.
class RecorderRing {
 public:
  void write(std::uint16_t who, const std::int32_t* pages, std::size_t count, TracedState from,
             TracedState to, std::uint64_t epoch);
  // The last `most` whole records, and how many are torn.
  Trace read(std::size_t most) const;

 private:
  struct Slot {
    std::atomic<std::uint64_t> sequence;  // 0: none, or being written
    std::atomic<std::uint64_t> time_ns, epoch;
    std::atomic<std::uint64_t> what;  // page, who, from, to, from the lowest byte up
  };
  static_assert(sizeof(Slot) == 32 && std::atomic<std::uint64_t>::is_always_lock_free);

  bool read_slot(std::uint64_t sequence, Transition& into) const;

  alignas(64) std::atomic<std::uint64_t> written_;  // sequence of the last record
  alignas(64) Slot slots_[kRecords];
};

// Nanoseconds of CLOCK_MONOTONIC.
std::uint64_t monotonic_ns();

}  // namespace kvcached::budget
