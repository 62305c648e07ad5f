#include "vmm/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <set>
#include <system_error>

namespace kvcached::vmm {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<int> fds;
};

void before_fork();
void after_fork_in_parent();
void after_fork_in_child();

// Never destroyed: destructors of tensors may need it after static destructors have run.
Registry& registry() {
  static Registry* const instance = [] {
    if (const int error = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child)) {
      throw std::system_error(error, std::generic_category(), "pthread_atfork");
    }
    return new Registry;
  }();
  return *instance;
}

void before_fork() { registry().mutex.lock(); }

void after_fork_in_parent() { registry().mutex.unlock(); }

void after_fork_in_child() {
  for (const int fd : registry().fds) ::close(fd);
  registry().fds.clear();
  registry().mutex.unlock();
}

}  // namespace

ForkClosedFd::ForkClosedFd(int fd) : fd_(fd) {
  const std::lock_guard lock(registry().mutex);
  registry().fds.insert(fd_);
}

ForkClosedFd::~ForkClosedFd() {
  if (get() < 0) return;
  const std::lock_guard lock(registry().mutex);
  registry().fds.erase(fd_);
  ::close(fd_);
}

int ForkClosedFd::get() const { return process_.is_here() ? fd_ : -1; }

std::unique_lock<std::mutex> hold_forks() { return std::unique_lock(registry().mutex); }

}  // namespace kvcached::vmm
