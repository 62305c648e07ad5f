// The record of one device's memory: who holds how much of it, who may have more.
//
// A record is a file in shared memory, mapped by every process that takes part. Header: magic,
// version, boot id, capacity. One row a rank, written only by its owner; totals are summed, never
// stored, so that a crash in the middle of a write spoils only a row that is about to be reaped.
// Liveness is a kernel record lock (F_SETLK) on the row's byte of a file of its own, opened once a
// process and never closed: freed at any death, not inherited by fork. A reaper must win that lock
// first. The table's own lock is flock without blocking, with a deadline.
//
// A grant of x bytes to rank i is given iff, under the table's lock,
//   lease_i + x <= limit_i
//   x <= free - sum(lease - created) - sum(claim) - sum over j != i of max(0, floor_j - lease_j)
//        - headroom
// where free = min(capacity - sum(created), device_free), and device_free was sampled by the caller
// before the lock, with the smaller of sum(created) read before and after.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvcached::budget {

using Bytes = std::uint64_t;

struct RowInfo {
  std::string instance;  // unique name of the engine; replicas are `name/dpN`
  std::uint32_t rank = 0;
  std::int64_t pid = 0;         // for display only
  std::uint64_t start_time = 0;  // for display only
  Bytes limit = 0, floor = 0, claim = 0, lease = 0, created = 0;
  Bytes want = 0;  // bytes asked for and refused, cleared when granted or withdrawn
  std::uint32_t weight = 100;
  bool alive = false;
};

enum class Grant {
  kGranted,
  kRefused,  // not now: the formula says no
  kMissed,   // the table's lock was not had within the deadline
};

class Budget : public std::enable_shared_from_this<Budget> {
 public:
  // Opens, or makes, the record of `device` ("host:NAME") in `directory` (made 0700; its owner is
  // checked). `capacity` is used by whoever makes it; a later opener whose capacity differs (and is
  // not 0) is refused, both numbers named. Raises BudgetError: foreign owner, other version, other
  // boot id (then it is made anew if no row lives), no space (posix_fallocate, never a SIGBUS).
  static std::shared_ptr<Budget> open(const std::string& directory, const std::string& device,
                                      Bytes capacity, Bytes headroom);
  virtual ~Budget() = default;

  virtual Bytes capacity() const = 0;
  virtual Bytes headroom() const = 0;

  // Takes a row for life, reaping dead ones first. Refused (BudgetError with the numbers) when
  // another live row has the same instance and rank, when floors and claims of all live rows do not
  // fit the capacity, when floor > limit, or when every row is taken. Returns the row's index.
  virtual int join(const std::string& instance, std::uint32_t rank, Bytes limit, Bytes floor,
                   Bytes claim, std::uint32_t weight) = 0;
  // Gives the row back; its lease must be 0 (asserted by value). Does nothing in another process.
  virtual void leave(int row) = 0;

  virtual Grant lease(int row, Bytes bytes, Bytes device_free,
                      std::chrono::milliseconds deadline) = 0;
  virtual void unlease(int row, Bytes bytes) = 0;         // promised, never created
  virtual void mark_created(int row, Bytes bytes) = 0;    // after the driver's create
  virtual void mark_released(int row, Bytes bytes) = 0;   // after the driver's release: created and lease fall

  // Advice: bytes that lease() would grant now to this row. No lock, no system call.
  virtual Bytes available(int row, Bytes device_free) const = 0;
  // Advice: as available(), plus what the others hold above their floors and say they could give
  // back at once (`idle`). No lock, no system call.
  virtual Bytes reachable(int row, Bytes device_free) const = 0;

  // What this row lacks; wakes the others. 0 withdraws. Written by the row's owner only.
  virtual void set_want(int row, Bytes bytes) = 0;
  // Bytes in pages of this row that no request uses (empty or merely cached). Display and advice.
  virtual void set_idle(int row, Bytes bytes) = 0;
  // How much of its lease this row should give back for the others' sake: the live others' wants
  // less what is grantable to them now, shared among holders by idle bytes above their floors;
  // never so much that the lease falls under the floor.
  virtual Bytes reclaim_target(int row) const = 0;

  // Blocks (futex, interpreter lock released by the binding) until the record's event counter
  // differs from `seen` or the deadline passes; returns the counter. set_want, mark_released,
  // leave, unlease and a reap bump it.
  virtual std::uint32_t wait_event(std::uint32_t seen, std::chrono::milliseconds deadline) const = 0;
  virtual std::uint32_t event() const = 0;

  // Gives the rows of the dead back. Returns how many. Any process may call it.
  virtual int reap() = 0;
  virtual std::vector<RowInfo> rows() const = 0;  // the live ones
};

}  // namespace kvcached::budget
