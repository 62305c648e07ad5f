// Which call of a driver fails, waits or ends the process: counted, on command. Thread safe;
// settings may change while calls run.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "vmm/driver.h"

namespace kvcached::vmm {

// The kinds of call that are counted, and what they are called in Python. kAny: all kinds together.
enum class Call {
  kReserve,
  kUnreserve,
  kCreate,
  kRelease,
  kMap,
  kSetAccess,
  kUnmap,
  kZero,
  kFence,
  kFreeBytes,
  kHeldBytes,
  kAny
};
constexpr std::array<const char*, 12> kCallNames = {
    "reserve", "unreserve", "create", "release",    "map",        "set_access",
    "unmap",   "zero",      "fence",  "free_bytes", "held_bytes", "any"};
// InvalidArgument for any other name.
Call call_named(const std::string& name);

// What a struck call does.
enum class Fault {
  kError,        // InjectedFault
  kOutOfMemory,  // OutOfMemory
  kLost,         // DeviceLost, and so is every call from then on
  kDie,          // the process ends at once, by SIGKILL
};
// "error", "oom", "lost" or "die"; InvalidArgument for any other name.
Fault fault_named(const std::string& name);

// The error of a struck call, so that a test can tell it from a driver's own.
class InjectedFault : public DriverError {
 public:
  using DriverError::DriverError;
};

// Whether the driver underneath has been called. A driver that reports an error after the effect
// breaks the contract, so kAfter is for kDie and for waits; it strikes only calls that succeeded.
enum class Moment { kBefore, kAfter };

class FaultPlan {
 public:
  using Wait = std::chrono::microseconds;

  // What happens around one counted call. Both may wait or not return; before() may throw.
  struct Turn {
    Call call;
    std::uint64_t number;  // among calls of its kind
    std::optional<Fault> fault;
    bool dies_after = false;
    Wait wait_before{0}, wait_after{0};
    void before() const;
    void after() const;
  };

  // The n-th call of this kind from now on is struck, once. Several may be planned. 0 lifts every
  // fault of the kind. InvalidArgument for a fault that may not strike at that moment.
  void fail_at(Call call, std::uint64_t n, Fault fault, Moment moment = Moment::kBefore);
  // Every call of this kind is struck until fail_at(call, 0) or reset().
  void fail_always(Call call, Fault fault);
  // Every call of this kind waits so long first, under no lock.
  void delay(Call call, Wait wait);
  // The n-th call of this kind from now on, n > 0, waits, once.
  void delay_at(Call call, std::uint64_t n, Wait wait, Moment moment);
  // Calls of each kind so far, struck ones too.
  std::map<std::string, std::uint64_t> counts() const;
  bool lost() const;  // a call was struck so, since the last reset()
  // Lifts every fault and delay and counts from 0 again.
  void reset();

  Turn count(Call call);

 private:
  struct Strike {
    Call call;
    std::uint64_t at;  // value of its kind's count
    std::optional<Fault> fault;
    Wait wait;
    Moment moment;
  };
  struct Kind {
    std::uint64_t calls = 0;
    std::optional<Fault> always;
    Wait wait{0};
  };
  Kind& kind(Call call) { return kinds_[static_cast<std::size_t>(call)]; }

  mutable std::mutex mutex_;
  std::array<Kind, kCallNames.size()> kinds_;
  std::vector<Strike> strikes_;
  bool lost_ = false;
};

}  // namespace kvcached::vmm
