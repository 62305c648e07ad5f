// Which byte ranges of a file are in use: first fit at the lowest offset, freed neighbours joined.
//
// Joining keeps the file from growing without bound under steady create and release of mixed
// sizes. Lowest first keeps neighbours in memory neighbours in the file, so that the kernel can
// join their mappings. No thread safety of its own: the owner's lock guards it.
#pragma once

#include <cstdint>
#include <map>

namespace kvcached::vmm {

class FileSpace {
 public:
  // Returns the offset of `size` bytes that were free; they lie below end() afterwards.
  std::uint64_t take(std::uint64_t size);
  // Gives back a range that take() returned, whole.
  void give(std::uint64_t offset, std::uint64_t size);
  // One past the last byte in use.
  std::uint64_t end() const { return end_; }

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> size, below end_, never adjacent
  std::uint64_t end_ = 0;
};

}  // namespace kvcached::vmm
