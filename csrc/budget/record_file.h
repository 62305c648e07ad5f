// A record's files: the directory's check, making, opening and replacing. Nothing of rows or sums.
#pragma once

#include <memory>
#include <string>

#include "budget/lock_rows.h"
#include "budget/lock_table.h"
#include "budget/record_layout.h"

namespace kvcached::budget {

// A descriptor that closes itself. Never for the rows file.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// An open, mapped and checked record of this version and this boot.
class RecordFile {
 public:
  // As Budget::open, but leaves the capacity and headroom of an existing record as they are.
  RecordFile(const std::string& directory, const std::string& device, Bytes capacity,
             Bytes headroom);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  Record& record() const { return *record_; }
  RowLocks& locks() const { return *locks_; }
  TableLockFile& table() const { return *table_; }
  const std::string& path() const { return path_; }
  // Whether `path` no longer leads to this file.
  bool detached() const;

 private:
  bool open_existing();  // false: look again
  bool open_locks(bool create);
  void map();
  void unmap();
  void check_layout() const;
  void replace_stale();
  void make();

  std::string path_, name_;
  Bytes capacity_, headroom_;
  Descriptor directory_, fd_;
  Record* record_ = nullptr;
  std::shared_ptr<RowLocks> locks_;
  std::unique_ptr<TableLockFile> table_;
};

// "host:a/b" -> "host%3Aa%2Fb": one to one, safe as a file's name.
std::string escape_device(const std::string& device);

// Makes `path` and its missing parents 0700 and opens it. BudgetError unless it is a directory of
// ours that nobody else may write to.
Descriptor open_directory(const std::string& path);

// "PATH: cannot VERB it: strerror(error). HINT", the hint another where descriptors ran out.
[[noreturn]] void fail(const std::string& path, const std::string& verb, int error,
                       const std::string& hint = "");

}  // namespace kvcached::budget
