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
//   x <= capacity - sum(lease) - gaps - headroom
//   x <= device_free - sum(lease - created) - sum(claim) - gaps - headroom
// where gaps = sum over j != i of max(0, floor_j - lease_j), and device_free was sampled by the
// caller before the lock, with the smaller of sum(created) read before and after. A claim is what
// a row's process will yet take of the device for other things: no part of the capacity.
//
// On disk: `<device>.record` is the mapped file and carries the table's flock; `<device>.rows` is
// empty and carries the row locks. No other code of a process that has joined may open and close
// `<device>.rows`: the kernel drops a process's record locks when it closes any descriptor of it.
//
// Threads: every method may be called from any thread. Fork: in a child, an inherited object can
// be read; leave() and the destructor do nothing, everything else raises. A child opens its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvcached::budget {

using Bytes = std::uint64_t;

// A sample that was not taken: as device_free, the capacity alone decides; as created_before,
// nothing was created between the sample of device_free and the call.
constexpr Bytes kNotSampled = std::numeric_limits<Bytes>::max();

// What the device says: its free bytes and the sum of created read before they were sampled.
struct Sample {
  Bytes device_free = kNotSampled;
  Bytes created_before = kNotSampled;
};

// What was found, what is allowed, what to do. The record is as before the call.
class BudgetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Another capacity or headroom than that of a record that others rely on.
class CapacityConflict : public BudgetError {
 public:
  using BudgetError::BudgetError;
};
// A row that was asked about is nobody's: its owner left, or died and was reaped.
class RowGone : public BudgetError {
 public:
  using BudgetError::BudgetError;
};

struct RowInfo {
  std::string instance;  // unique name of the engine; replicas are `name/dpN`
  std::uint32_t rank = 0;
  std::int64_t pid = 0;          // for display only
  std::uint64_t start_time = 0;  // for display only
  Bytes limit = 0, floor = 0, claim = 0, lease = 0, created = 0;
  Bytes want = 0;  // bytes asked for and refused, cleared when granted or withdrawn
  std::uint32_t weight = 100;
  bool alive = false;
  Bytes idle = 0;  // bytes in pages that no request uses
};

enum class Grant {
  kGranted,
  kRefused,  // not now: the formula says no
  kMissed,   // the table's lock was not had within the deadline
};

class Budget : public std::enable_shared_from_this<Budget> {
 public:
  // Opens, or makes, the record of `device` ("host:NAME") in `directory` (made 0700, parents too;
  // it must be ours and writable by nobody else). Capacity and headroom are set by whoever makes
  // it, and by a later opener while no row lives and nobody who named them has it open; otherwise
  // one that differs is refused with a CapacityConflict, both numbers named. So they stay what they
  // were at open() for as long as the object lives. Capacity 0 takes both from a record that must
  // exist; they may change until join(), which then raises CapacityConflict.
  // Raises BudgetError: foreign owner or mode, other version, other boot id with a live row
  // (without one it is made anew), no space (posix_fallocate, never a SIGBUS).
  static std::shared_ptr<Budget> open(const std::string& directory, const std::string& device,
                                      Bytes capacity, Bytes headroom);
  // Leaves the rows whose lease is 0. A row with a lease stays this process's until it dies, for
  // its memory may still be there.
  virtual ~Budget() = default;

  virtual Bytes capacity() const = 0;
  virtual Bytes headroom() const = 0;

  // Takes a row for life, reaping dead ones first. Refused (BudgetError with the numbers) when
  // another live row has the same instance (1 to 64 bytes) and rank, when the floors of all live
  // rows and the headroom do not fit the capacity, when floor > limit, when weight is 0, when
  // every row is taken, or when the table's lock was not had in 5 s. Returns the row's index.
  virtual int join(const std::string& instance, std::uint32_t rank, Bytes limit, Bytes floor,
                   Bytes claim, std::uint32_t weight) = 0;
  // Changes the row's terms: a claim is lowered as its bytes are allocated; sleep is floor 0,
  // waking is asking for it back. kRefused, nothing written, when floors would no longer fit;
  // lowering one is never refused. A limit below the lease only stops its growth.
  virtual Grant set_terms(int row, Bytes limit, Bytes floor, Bytes claim,
                          std::chrono::milliseconds deadline) = 0;
  // Gives the row back; its lease must be 0 (asserted by value). Does nothing in another process.
  virtual void leave(int row) = 0;

  // The formula above, under the table's lock. A refusal reaps the dead and tries once more, and
  // writes nothing; a grant takes `bytes` off the row's want. `created_before` is created(), read
  // before device_free was sampled: without it, bytes that another rank creates between that
  // sample and this call are counted by neither.
  virtual Grant lease(int row, Bytes bytes, Bytes device_free, std::chrono::milliseconds deadline,
                      Bytes created_before = kNotSampled) = 0;
  virtual void unlease(int row, Bytes bytes) = 0;       // promised, never created
  virtual void mark_created(int row, Bytes bytes) = 0;  // after the driver's create
  // After the driver's release: created and lease fall.
  virtual void mark_released(int row, Bytes bytes) = 0;

  // Sum of created over all rows. No lock, no system call.
  virtual Bytes created() const = 0;
  // Advice: bytes that lease() would grant now to this row. No lock, no system call.
  virtual Bytes available(int row, const Sample& sample) const = 0;
  // Advice: as available(), plus what other instances hold above their floors and say they could
  // give back at once (`idle`). No lock, no system call.
  virtual Bytes reachable(int row, const Sample& sample) const = 0;

  // What this row lacks; wakes the others. 0 withdraws. Written by the row's owner only.
  virtual void set_want(int row, Bytes bytes) = 0;
  // Bytes in pages of this row that no request uses (empty or merely cached). Display and advice;
  // more of them while somebody wants memory is an event.
  virtual void set_idle(int row, Bytes bytes) = 0;
  // How much of its lease this row should give back for other instances' sake: their live rows'
  // wants less what is grantable to them now, shared among holders by idle bytes above their floors
  // over weight; never more than those idle bytes. Where others than members use the device, pass
  // what its driver calls free, or their use is not seen. `own_idle` is this row's idle bytes where
  // the caller knows better than the record, which is told later. No lock.
  virtual Bytes reclaim_target(int row, const Sample& sample = {},
                               Bytes own_idle = kNotSampled) const = 0;
  // Advice: bytes that this row's requests may use, all in all, while another instance wants
  // memory: its part by weight, see fair_share.h. Its limit while none wants any. No lock.
  virtual Bytes fair_share(int row, const Sample& sample = {}) const = 0;
  // Whether a row of another instance than this row's wants memory. No lock.
  virtual bool others_want(int row) const = 0;

  // Blocks (futex, interpreter lock released by the binding) until the record's event counter
  // differs from `seen`, the deadline passes or a signal arrives; returns the counter. set_want,
  // set_terms, mark_released, leave, unlease and a reap bump it, and set_idle where it matters.
  virtual std::uint32_t wait_event(std::uint32_t seen,
                                   std::chrono::milliseconds deadline) const = 0;
  virtual std::uint32_t event() const = 0;
  // For who could give memory and has nothing else to do: as wait_event(), but with a counter of
  // its own that set_want, set_idle while somebody wants memory, and whoever comes or goes bump,
  // and does not return before another instance than this row's wants memory. So as long as nobody
  // does, an engine is not disturbed by what its neighbours take and give back.
  virtual std::uint32_t wait_wanted(int row, std::uint32_t seen,
                                    std::chrono::milliseconds deadline) const = 0;

  // Gives the rows of the dead back. Returns how many; 0 also when the table's lock was not had in
  // 100 ms. Any process may call it.
  virtual int reap() = 0;
  virtual std::vector<RowInfo> rows() const = 0;  // the live ones

  // Whether the record's file was removed or replaced by name. Its members go on among
  // themselves, but who opens now does not meet them.
  virtual bool detached() const = 0;
};

}  // namespace kvcached::budget
