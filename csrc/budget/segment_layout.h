// Where the parts of a segment's file lie: header, ring of page ids, one part a rank with its
// results and page states, one recorder a writer. Everything begins on a cache line.
#pragma once

#include <cstddef>
#include <cstdint>

#include "budget/segment.h"

namespace kvcached::budget {

inline constexpr std::uint64_t kSegmentMagic = 0x4745534341564b00;  // "\0KVACSEG"
inline constexpr std::uint32_t kSegmentVersion = 3;

// Page ids and distances in the ring are signed 32-bit numbers.
inline constexpr std::uint32_t kMaxPages = 1U << 30;

inline std::uint32_t power_of_two(std::uint32_t n) {
  std::uint32_t p = 1;
  while (p < n) p <<= 1;
  return p;
}

inline std::size_t aligned(std::size_t n) { return (n + 63) / 64 * 64; }

inline std::size_t ring_offset() { return aligned(sizeof(SegmentHeader)); }

inline std::size_t parts_offset(std::uint32_t ring_size) {
  return ring_offset() + aligned(ring_size * sizeof(std::uint32_t));
}

inline std::size_t part_stride(std::uint32_t ring_size, std::uint32_t num_pages) {
  return aligned(sizeof(RankPart)) + aligned(ring_size) + aligned(num_pages);
}

inline std::size_t recorders_offset(std::uint32_t pages, std::uint32_t ranks, std::uint32_t ring) {
  return parts_offset(ring) + ranks * part_stride(ring, pages);
}

inline std::size_t total_size(std::uint32_t pages, std::uint32_t ranks, std::uint32_t ring) {
  return recorders_offset(pages, ranks, ring) + (1 + std::size_t{ranks}) * sizeof(RecorderRing);
}

}  // namespace kvcached::budget
