#include "budget/lock_table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "budget/record_file.h"

namespace kvcached::budget {
namespace {

using std::chrono::microseconds;

// The lock is held for some ten microseconds, so that is the first pause; the last bounds the
// load of a long wait.
constexpr microseconds kFirstPause{20};
constexpr microseconds kLongestPause{1000};

// The descriptors that this process locks by. A child of a fork closes its copies; the mutex is
// held across the fork, so that no descriptor is open but not yet noted here.
struct Tracked {
  std::mutex mutex;
  std::vector<int> open;
};

Tracked& tracked() {
  static auto* all = new Tracked;
  return *all;
}

void before_fork() { tracked().mutex.lock(); }
void in_parent() { tracked().mutex.unlock(); }
void in_child() {
  for (const int fd : tracked().open) ::close(fd);
  tracked().open.clear();
  tracked().mutex.unlock();
}

int open_tracked(const std::string& path) {
  static const int registered = ::pthread_atfork(before_fork, in_parent, in_child);
  (void)registered;
  Tracked& all = tracked();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) all.open.push_back(fd);
  return fd;
}

void close_tracked(int fd) {
  Tracked& all = tracked();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = std::find(all.open.begin(), all.open.end(), fd);
  if (found == all.open.end()) return;  // a child's copy, closed at the fork
  all.open.erase(found);
  ::close(fd);
}

}  // namespace

std::chrono::steady_clock::time_point until(std::chrono::milliseconds deadline) {
  constexpr std::chrono::milliseconds kDay = std::chrono::hours(24);
  return std::chrono::steady_clock::now() +
         std::clamp(deadline, std::chrono::milliseconds(0), kDay);
}

TableLockFile::TableLockFile(int fd, std::string path) : path_(std::move(path)) {
  // Through /proc: a descriptor of its own of this very file, also where its name is gone.
  const std::string self = "/proc/self/fd/" + std::to_string(fd);
  fd_ = open_tracked(self);
  if (fd_ < 0) fail(path_, "open " + self + " to lock", errno);
}

TableLockFile::~TableLockFile() { close_tracked(fd_); }

TableLock::TableLock(TableLockFile& file, std::chrono::milliseconds deadline) : file_(file) {
  const auto end = until(deadline);
  if (!file_.mutex_.try_lock_until(end)) return;
  for (microseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (::flock(file_.fd_, LOCK_EX | LOCK_NB) == 0) {
      held_ = true;
      return;
    }
    const int error = errno;
    if (error != EWOULDBLOCK && error != EINTR) {
      file_.mutex_.unlock();
      fail(file_.path_, "lock", error, "Put budget_dir on a file system with flock.");
    }
    const auto now = std::chrono::steady_clock::now();
    if (now >= end) break;
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(pause, end - now));
  }
  file_.mutex_.unlock();
}

TableLock::~TableLock() {
  if (!held_) return;
  ::flock(file_.fd_, LOCK_UN);
  file_.mutex_.unlock();
}

std::string TableLock::held_message(const std::string& path, std::chrono::milliseconds deadline) {
  return path + ": another process held its lock for " + std::to_string(deadline.count()) +
         " ms, microseconds are usual. `lslocks` names it; is it stopped by a debugger?";
}

}  // namespace kvcached::budget
