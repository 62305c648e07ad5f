// Waiting on a 32-bit word in shared memory, between processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace kvcached::budget {

// Returns when `word` no longer holds `seen`, on a wake, a signal, or after the deadline: the
// caller looks again in any case.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                       std::chrono::milliseconds deadline) {
  timespec limit{deadline.count() / 1000, (deadline.count() % 1000) * 1000000};
  syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit,
          nullptr, 0);
}

inline void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

inline void futex_bump(std::atomic<std::uint32_t>& word) {
  word.fetch_add(1, std::memory_order_acq_rel);
  futex_wake(word);
}

}  // namespace kvcached::budget
