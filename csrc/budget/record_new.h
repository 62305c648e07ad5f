// Making a record: complete under a temporary name first, then named.
#pragma once

#include <memory>
#include <string>

#include "budget/lock_table.h"
#include "budget/record_file.h"

namespace kvcached::budget {

// What a record begins with, apart from what is the same in all.
struct NewRecordTerms {
  std::uint64_t rows_inode;
  Bytes capacity, headroom;
};

// A complete record under a temporary name, which goes with the object. Its file is locked
// meanwhile: a temporary that nobody locks was left by the dead.
class NewRecord {
 public:
  // `path` is the record's, for errors. BudgetError when there is no room for it.
  NewRecord(int directory, const std::string& name, const std::string& path,
            const NewRecordTerms& terms);
  ~NewRecord();
  NewRecord(const NewRecord&) = delete;
  NewRecord& operator=(const NewRecord&) = delete;

  // Gives it the record's name, unless another has that. Either way, look what has it now.
  void link();
  // Gives it the record's name in another's place.
  void replace();

 private:
  void write(const NewRecordTerms& terms) const;

  const int directory_;
  const std::string record_, path_, temporary_;
  const Descriptor fd_;
  std::unique_ptr<TableLockFile> file_;
  std::unique_ptr<TableLock> lock_;
};

// Removes what makers of `name` left who died before they were done. Best effort.
void sweep_new_records(int directory, const std::string& name, const std::string& path);

// This boot's id. BudgetError if it cannot be read.
const std::string& boot_id();

}  // namespace kvcached::budget
