#include "vmm/fence.h"

#include <algorithm>
#include <thread>

namespace kvcached::vmm {
namespace {

// Zeroing a page is a few microseconds, a step of an engine is milliseconds.
constexpr std::chrono::microseconds kFirstPause{5};
constexpr std::chrono::microseconds kLongestPause{500};

class PassedFence final : public Fence {
 public:
  bool passed() override { return true; }
  std::string describe() const override { return "work of the host, which is done"; }
};

}  // namespace

bool Fence::wait(std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  auto pause = kFirstPause;
  while (!passed()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

std::shared_ptr<Fence> passed_fence() { return std::make_shared<PassedFence>(); }

}  // namespace kvcached::vmm
