// The table's lock: flock on a descriptor opened for it, so that it excludes threads as well.
//
// Held for microseconds, over memory reads and try-locks only. Freed when its holder dies; a child
// forked meanwhile closes its copy, so that it cannot keep the lock of a dead parent.
#pragma once

#include <chrono>
#include <string>

namespace kvcached::budget {

// For opening and joining, where nobody waits in a step.
constexpr std::chrono::milliseconds kStartDeadline{5000};

class TableLock {
 public:
  // Tries until the deadline; 0 is one try. `fd` is any descriptor of the record, `path` is for
  // errors: BudgetError when the lock cannot be had at all.
  TableLock(int fd, const std::string& path, std::chrono::milliseconds deadline);
  ~TableLock();
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;
  explicit operator bool() const { return fd_ >= 0; }

  static std::string held_message(const std::string& path, std::chrono::milliseconds deadline);

 private:
  int fd_ = -1;
};

// now + deadline, the deadline clamped to [0, one day] so that no sum overflows.
std::chrono::steady_clock::time_point until(std::chrono::milliseconds deadline);

}  // namespace kvcached::budget
