// The bytes of a record, the same in every process that maps it.
//
// Every field is written with one atomic store, so a death in the middle of a change leaves old or
// new values, never a torn one. A row counts only while `taken`, which is stored last by join and
// first by whoever clears the row.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "budget/budget.h"

namespace kvcached::budget {

constexpr std::uint64_t kMagic = 0x746567647562766bULL;  // "kvbudget" in memory order
constexpr std::uint32_t kVersion = 2;                    // of this layout and of who locks what
constexpr int kRows = 64;         // 8 engines of 8 ranks on one device; the table stays 12 KiB
constexpr int kNameBytes = 64;    // longest instance name
constexpr int kBootIdBytes = 40;  // a UUID is 36 characters
constexpr int kCacheLine = 64;    // two writers' rows never share one

using Word = std::atomic<std::uint64_t>;
using EventWord = std::atomic<std::uint32_t>;  // a futex word is 32 bits
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint64_t));
static_assert(EventWord::is_always_lock_free && sizeof(EventWord) == sizeof(std::uint32_t));

struct alignas(kCacheLine) Header {
  std::uint64_t magic;  // magic and version keep their place in every version
  std::uint32_t version;
  std::uint32_t row_count;
  std::uint64_t rows_inode;  // of the file with the row locks: another one would show all as dead
  char boot_id[kBootIdBytes];
  alignas(kCacheLine) Word capacity;  // bytes, like all that follow
  Word headroom;
  alignas(kCacheLine) EventWord event;  // whatever those may wait for who lack memory
  EventWord wanted;                     // whatever those may wait for who could give some
};

struct alignas(kCacheLine) Row {
  Word taken;  // 0 or 1
  Word rank, weight, pid, start_time;
  Word limit, floor, claim;
  Word lease, created;  // created <= lease: lease is raised first and lowered last
  Word want, idle;
  Word name[kNameBytes / sizeof(Word)];  // padded with zeros

  std::string instance() const;
  void set_instance(const std::string& text);
  void clear();
};

struct Record {
  Header header;
  Row rows[kRows];
};
static_assert(sizeof(Header) == 3 * kCacheLine && sizeof(Row) == 3 * kCacheLine);

}  // namespace kvcached::budget
