#include "budget/recorder.h"

#include <algorithm>
#include <chrono>

namespace kvcached::budget {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

const char* name(TracedState state) {
  static constexpr const char* kNames[kTracedStates] = {"virtual", "preparing", "owned",
                                                        "mapped",  "retiring",  "quarantined"};
  const auto at = static_cast<std::size_t>(state);
  return at < kTracedStates ? kNames[at] : "unknown";
}

std::uint64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void RecorderRing::write(std::uint16_t who, const std::int32_t* pages, std::size_t count,
                         TracedState from, TracedState to, std::uint64_t epoch) {
  if (count == 0) return;
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t edge = std::uint64_t{who} << 32 |
                             std::uint64_t{static_cast<std::uint8_t>(from)} << 48 |
                             std::uint64_t{static_cast<std::uint8_t>(to)} << 56;
  std::uint64_t sequence = written_.load(kRelaxed);
  for (std::size_t i = 0; i < count; ++i) {
    Slot& slot = slots_[++sequence % kRecords];
    slot.sequence.store(0, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
    slot.time_ns.store(now, kRelaxed);
    slot.epoch.store(epoch, kRelaxed);
    slot.what.store(edge | static_cast<std::uint32_t>(pages[i]), kRelaxed);
    slot.sequence.store(sequence, std::memory_order_release);
    written_.store(sequence, std::memory_order_release);
  }
}

bool RecorderRing::read_slot(std::uint64_t sequence, Transition& into) const {
  const Slot& slot = slots_[sequence % kRecords];
  if (slot.sequence.load(std::memory_order_acquire) != sequence) return false;
  into.sequence = sequence;
  into.time_ns = slot.time_ns.load(kRelaxed);
  into.epoch = slot.epoch.load(kRelaxed);
  const std::uint64_t what = slot.what.load(kRelaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  into.page = static_cast<std::uint32_t>(what);
  into.who = static_cast<std::uint16_t>(what >> 32);
  into.from = static_cast<TracedState>(what >> 48 & 0xFF);
  into.to = static_cast<TracedState>(what >> 56);
  return slot.sequence.load(kRelaxed) == sequence;
}

Trace RecorderRing::read(std::size_t most) const {
  Trace trace;
  // A writer that was killed before it counted its last record has written that one whole.
  const std::uint64_t last = written_.load(std::memory_order_acquire) + 1;
  const std::uint64_t tried = std::min<std::uint64_t>(std::min(most, kRecords) + 1, last);
  for (std::uint64_t sequence = last - tried + 1; sequence <= last; ++sequence) {
    Transition found;
    if (read_slot(sequence, found)) trace.transitions.push_back(found);
  }
  if (trace.transitions.size() > most) trace.transitions.erase(trace.transitions.begin());
  for (const Slot& slot : slots_)
    trace.torn += slot.sequence.load(kRelaxed) == 0 && slot.time_ns.load(kRelaxed) != 0;
  return trace;
}

}  // namespace kvcached::budget
