#include "vmm/own_process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <system_error>

namespace kvcached::vmm {
namespace {

std::atomic<unsigned> forks{0};  // in this process's line of descent, since the first OwnProcess

void in_child() { forks.fetch_add(1, std::memory_order_relaxed); }

unsigned watched_forks() {
  static const int error = ::pthread_atfork(nullptr, nullptr, in_child);
  if (error != 0) throw std::system_error(error, std::generic_category(), "pthread_atfork");
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

OwnProcess::OwnProcess() : pid_(::getpid()), forks_(watched_forks()) {}

bool OwnProcess::is_here() const { return forks.load(std::memory_order_relaxed) == forks_; }

}  // namespace kvcached::vmm
