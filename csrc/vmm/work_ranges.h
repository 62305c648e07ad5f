// Ranges of addresses that declared work may touch, and who edits them nevertheless.
//
// Work stands for what is queued on a device or runs on a CPU: from its begin to its end nobody may
// change what is mapped there or zero it. Both orders are caught: an edit of a range in use, and
// work that begins on a range whose edit is under way. Thread safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "vmm/driver.h"

namespace kvcached::vmm {

// A range in use was to be edited. Nothing was done.
class RangeInUse : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

class WorkRanges {
 private:
  struct Range {
    std::uintptr_t first, last;  // inclusive
    bool operator==(const Range& other) const { return first == other.first && last == other.last; }
    bool meets(const Range& other) const { return first <= other.last && other.first <= last; }
  };

 public:
  // Work may overlap other work, also the same range twice. RangeInUse, counted, if an edit is
  // under way in the range: the work has not begun then. InvalidArgument for a range that is empty
  // or wraps round.
  void begin_work(std::uintptr_t address, Bytes size);
  // InvalidArgument unless this very range was begun, and not ended as often.
  void end_work(std::uintptr_t address, Bytes size);
  // RangeInUse so far.
  std::uint64_t violations() const;
  // Ends all work and counts from 0 again.
  void clear();

  // An edit that is under way as long as the object lives.
  class Edit {
   public:
    Edit(WorkRanges& owner, const char* call, std::uintptr_t address, Bytes size);  // RangeInUse
    ~Edit();
    Edit(const Edit&) = delete;
    Edit& operator=(const Edit&) = delete;

   private:
    WorkRanges& owner_;
    const Range range_;
    const bool empty_;
  };

 private:
  // The last address saturates: a wrong size is for the driver to refuse.
  static Range range(std::uintptr_t address, Bytes size);
  void refuse_overlap(const std::vector<Range>& taken, const Range& range, const char* call,
                      const char* by);  // wants mutex_ held

  mutable std::mutex mutex_;
  std::vector<Range> work_, edits_;
  std::uint64_t violations_ = 0;
};

}  // namespace kvcached::vmm
