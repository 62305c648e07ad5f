// The row locks: byte r of the rows file is write-locked by F_SETLK while the owner of row r lives.
// The byte behind them is read-locked by every process that relies on the record's capacity: while
// it is, nobody changes that (the pin).
//
// Such locks belong to the process and vanish when it closes any descriptor of the file. So each
// rows file is opened once a process, found again by (device, inode), and never closed. They do
// not exclude the process's own threads, so the rows that this process holds are in a table too.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "budget/record_layout.h"

namespace kvcached::budget {

class RowLocks {
 public:
  // The process's one object for `name` in `directory`. nullptr when it does not exist and must
  // not be created. `path` is for errors (BudgetError).
  static std::shared_ptr<RowLocks> open(int directory, const std::string& name,
                                        const std::string& path, bool create);

  // False when anybody, this process included, holds it. Never blocks.
  bool try_hold(int row);
  // Only after try_hold() was true, and only in the process that it was true in.
  void release(int row);
  // Whether a process, this one included, holds it.
  bool alive(int row) const;
  // The pin is counted: a process holds it until it has unpinned as often as pinned. Whoever pins
  // holds the table's lock, as does whoever changes what is not pinned.
  void pin();
  void unpin();
  bool pinned() const;  // by any process, this one included
  std::uint64_t inode() const { return inode_; }

  RowLocks(int fd, std::uint64_t inode, std::string path);

 private:
  int fd_;
  std::uint64_t inode_;
  std::string path_;
  std::array<std::atomic<bool>, kRows> held_{};
  std::mutex mutex_;  // guards pins_ and its lock: the table's is another one a record
  std::atomic<int> pins_{0};
};

}  // namespace kvcached::budget
