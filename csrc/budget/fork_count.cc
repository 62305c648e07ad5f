#include "budget/fork_count.h"

#include <pthread.h>

#include <atomic>

namespace kvcached::budget {
namespace {

std::atomic<unsigned> count{0};

void in_child() { count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

unsigned fork_count() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
  return count.load(std::memory_order_relaxed);
}

}  // namespace kvcached::budget
