#include "vmm/work_ranges.h"

#include <algorithm>
#include <limits>

#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

constexpr std::uintptr_t kLast = std::numeric_limits<std::uintptr_t>::max();

}  // namespace

WorkRanges::Range WorkRanges::range(std::uintptr_t address, Bytes size) {
  const Bytes more = size == 0 ? 0 : size - 1;
  return {address, more > kLast - address ? kLast : address + more};
}

void WorkRanges::refuse_overlap(const std::vector<Range>& taken, const Range& range,
                                const char* call, const char* by) {
  for (const Range& other : taken) {
    if (!other.meets(range)) continue;
    ++violations_;
    throw RangeInUse(text(call, " of [0x", std::hex, range.first, ", 0x", range.last,
                          "]: the range meets ", by, " [0x", other.first, ", 0x", other.last, "]"));
  }
}

void WorkRanges::begin_work(std::uintptr_t address, Bytes size) {
  if (size == 0 || size - 1 > kLast - address) {
    throw InvalidArgument(text("begin_work: ", size, " bytes at 0x", std::hex, address,
                               " are no range of addresses"));
  }
  const std::lock_guard lock(mutex_);
  refuse_overlap(edits_, range(address, size), "begin_work", "an edit under way in");
  work_.push_back(range(address, size));
}

void WorkRanges::end_work(std::uintptr_t address, Bytes size) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(work_.begin(), work_.end(), range(address, size));
  if (size == 0 || found == work_.end()) {
    throw InvalidArgument(
        text("end_work: no work runs on just these ", size, " bytes at 0x", std::hex, address));
  }
  work_.erase(found);
}

std::uint64_t WorkRanges::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

void WorkRanges::clear() {
  const std::lock_guard lock(mutex_);
  work_.clear();
  violations_ = 0;
}

WorkRanges::Edit::Edit(WorkRanges& owner, const char* call, std::uintptr_t address, Bytes size)
    : owner_(owner), range_(WorkRanges::range(address, size)), empty_(size == 0) {
  if (empty_) return;
  const std::lock_guard lock(owner_.mutex_);
  owner_.refuse_overlap(owner_.work_, range_, call, "work that runs in");
  owner_.edits_.push_back(range_);
}

WorkRanges::Edit::~Edit() {
  if (empty_) return;
  const std::lock_guard lock(owner_.mutex_);
  owner_.edits_.erase(std::find(owner_.edits_.begin(), owner_.edits_.end(), range_));
}

}  // namespace kvcached::vmm
