// The table's lock: flock on a descriptor opened for it, and a mutex for the threads that share it.
//
// Held for microseconds, over memory reads and try-locks only. Freed when its holder dies; a child
// of a fork closes its copy, so that it cannot keep the lock of a dead parent.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace kvcached::budget {

// For opening and joining, where nobody waits in a step.
constexpr std::chrono::milliseconds kStartDeadline{5000};

// Opened once a record, so that locking needs no descriptor when there is none left. In a forked
// child it is dead: nothing may be locked by it.
class TableLockFile {
 public:
  // `fd` is any descriptor of the record, `path` is for errors: BudgetError if it cannot be opened.
  TableLockFile(int fd, std::string path);
  ~TableLockFile();
  TableLockFile(const TableLockFile&) = delete;
  TableLockFile& operator=(const TableLockFile&) = delete;

 private:
  friend class TableLock;
  const std::string path_;
  std::timed_mutex mutex_;
  int fd_;
};

class TableLock {
 public:
  // Tries until the deadline; 0 is one try. BudgetError when the lock cannot be had at all.
  TableLock(TableLockFile& file, std::chrono::milliseconds deadline);
  ~TableLock();
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;
  explicit operator bool() const { return held_; }

  static std::string held_message(const std::string& path, std::chrono::milliseconds deadline);

 private:
  TableLockFile& file_;
  bool held_ = false;
};

// now + deadline, the deadline clamped to [0, one day] so that no sum overflows.
std::chrono::steady_clock::time_point until(std::chrono::milliseconds deadline);

}  // namespace kvcached::budget
