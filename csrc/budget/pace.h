// How fast memory is mapped and unmapped in the background, so that what computes beside it, this
// engine's work and its neighbours', keeps the device's bandwidth.
//
// Zeroing writes every byte, and unmapping empties the translation caches that kernels use: at full
// speed both cost a kernel that is bound by bandwidth an eighth of it (docs/benchmarks.md). A token
// bucket: a burst goes through at once, and then so many bytes a second. One thread.
#pragma once

#include <algorithm>
#include <chrono>

#include "vmm/driver.h"

namespace kvcached::budget {

struct PaceTerms {
  double bytes_per_second = 48.0 * (std::uint64_t{1} << 30);
  double burst = 2.0 * (std::uint64_t{1} << 30);
};

class Pace {
 public:
  explicit Pace(const PaceTerms& terms) : terms_(terms), left_(terms.burst) {}

  bool allows() {
    const auto now = Clock::now();
    const std::chrono::duration<double> passed = now - seen_;
    left_ = std::min(terms_.burst, left_ + terms_.bytes_per_second * passed.count());
    seen_ = now;
    return left_ > 0;
  }
  void spend(vmm::Bytes bytes) { left_ -= static_cast<double>(bytes); }

 private:
  using Clock = std::chrono::steady_clock;
  const PaceTerms terms_;
  double left_;  // below 0 after the last piece of a burst
  Clock::time_point seen_ = Clock::now();
};

}  // namespace kvcached::budget
