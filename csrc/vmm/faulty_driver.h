// A driver that fails, waits or runs short on command, over any other driver: for tests.
//
// Faults strike before the driver underneath is called, so a failed call has no effect, as the
// contract says. Thread safe; settings may change while calls run.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "vmm/driver.h"

namespace kvcached::vmm {

// The kinds of call that are counted, and what they are called in Python.
enum class Call {
  kReserve,
  kUnreserve,
  kCreate,
  kRelease,
  kMap,
  kSetAccess,
  kUnmap,
  kZero,
  kFreeBytes
};
constexpr std::array<const char*, 9> kCallNames = {"reserve", "unreserve", "create",
                                                   "release", "map",       "set_access",
                                                   "unmap",   "zero",      "free_bytes"};
// InvalidArgument for any other name.
Call call_named(const std::string& name);

// What a struck call does.
enum class Fault {
  kError,        // DriverError
  kOutOfMemory,  // OutOfMemory
};
// "error" or "oom"; InvalidArgument for any other name.
Fault fault_named(const std::string& name);

class FaultyDriver final : public Driver {
 public:
  explicit FaultyDriver(std::shared_ptr<Driver> driver) : inner_(std::move(driver)) {}

  // The n-th call of this kind from now on fails, once. 0 lifts every fault of the kind.
  void fail_at(Call call, std::uint64_t n, Fault fault = Fault::kError);
  // Every call of this kind fails until fail_at(call, 0) or reset().
  void fail_always(Call call, Fault fault = Fault::kError);
  // Every call of this kind waits so long first, under no lock.
  void delay(Call call, std::chrono::microseconds wait);
  // create() raises OutOfMemory rather than have more than so many bytes alive. Nothing: no quota.
  void quota(std::optional<Bytes> bytes);
  // Calls of each kind so far, failed ones too.
  std::map<std::string, std::uint64_t> counts() const;
  // Lifts every fault, delay and quota and counts from 0 again.
  void reset();

  std::string name() const override { return "faulty " + inner_->name(); }
  Bytes granularity() const override { return inner_->granularity(); }
  int dlpack_device_type() const override { return inner_->dlpack_device_type(); }
  int dlpack_device_id() const override { return inner_->dlpack_device_id(); }
  bool creates_zeroed() const override { return inner_->creates_zeroed(); }
  void* reserve(Bytes size) override;
  void unreserve(void* base, Bytes size) override;
  Handle create(Bytes size) override;
  void release(Handle handle) override;
  void map(void* address, Handle handle) override;
  void set_access(void* address, Bytes size) override;
  void unmap(void* address, Bytes size) override;
  void zero(void* address, Bytes size) override;
  Bytes free_bytes() override;  // no more than the quota leaves
  Bytes held_bytes() override { return inner_->held_bytes(); }

 private:
  struct Plan {
    std::uint64_t calls = 0;
    std::uint64_t strike_at = 0;  // value of `calls`; 0: never
    bool always = false;
    Fault fault = Fault::kError;
    std::chrono::microseconds wait{0};
  };
  Plan& plan(Call call) { return plans_[static_cast<std::size_t>(call)]; }
  void enter(Call call);  // counts, waits, strikes
  void charge(Bytes size);

  const std::shared_ptr<Driver> inner_;
  mutable std::mutex mutex_;
  std::array<Plan, kCallNames.size()> plans_;
  std::optional<Bytes> quota_;
  Bytes created_ = 0;  // alive
};

}  // namespace kvcached::vmm
