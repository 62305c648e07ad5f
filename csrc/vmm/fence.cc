#include "vmm/fence.h"

#include <algorithm>
#include <thread>

namespace kvcached::vmm {
namespace {

// Zeroing a page is a few microseconds, less than the shortest sleep; a step of an engine is
// milliseconds.
constexpr std::chrono::microseconds kWithoutPause{30};
constexpr std::chrono::microseconds kFirstPause{5};
constexpr std::chrono::microseconds kLongestPause{500};

class PassedFence final : public Fence {
 public:
  bool passed() override { return true; }
  std::string describe() const override { return "work of the host, which is done"; }
};

}  // namespace

bool Fence::wait(std::chrono::milliseconds deadline) {
  const auto begin = std::chrono::steady_clock::now();
  auto pause = kFirstPause;
  while (!passed()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= deadline) return false;
    if (waited < kWithoutPause) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

std::shared_ptr<Fence> passed_fence() { return std::make_shared<PassedFence>(); }

}  // namespace kvcached::vmm
