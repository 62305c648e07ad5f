#include "vmm/file_space.h"

#include <iterator>

namespace kvcached::vmm {

std::uint64_t FileSpace::take(std::uint64_t size) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < size) continue;
    const auto [offset, have] = *it;
    if (have > size) free_.emplace(offset + size, have - size);
    free_.erase(it);
    return offset;
  }
  const std::uint64_t offset = end_;
  end_ += size;
  return offset;
}

void FileSpace::give(std::uint64_t offset, std::uint64_t size) {
  auto it = free_.emplace(offset, size).first;
  if (const auto next = std::next(it); next != free_.end() && offset + size == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it != free_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second == offset) {
      before->second += it->second;
      free_.erase(it);
      it = before;
    }
  }
  if (it->first + it->second == end_) {
    end_ = it->first;
    free_.erase(it);
  }
}

}  // namespace kvcached::vmm
