// A driver that fails, waits, dies or runs short on command, over any other driver: for tests.
//
// Errors strike before the driver underneath is called, so a failed call has no effect, as the
// contract says; death and waits may strike after the effect too. Edits (map, set_access, unmap,
// zero, unreserve, release of a handle that is mapped) of a range that declared work uses raise
// RangeInUse before any effect. Thread safe; settings may change while calls run.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "vmm/driver.h"
#include "vmm/fault_plan.h"
#include "vmm/quotas.h"
#include "vmm/work_ranges.h"

namespace kvcached::vmm {

class FaultyDriver final : public Driver {
 public:
  explicit FaultyDriver(std::shared_ptr<Driver> driver) : inner_(std::move(driver)) {}

  FaultPlan& plan() { return plan_; }
  WorkRanges& work() { return work_; }
  // In the place of all quotas before.
  void set_quota(const Quota& quota) { quotas_.set(quota); }
  // Lifts every fault, delay and quota, ends all work, and counts from 0 again.
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
  void finish() override { inner_->finish(); }
  std::shared_ptr<Fence> fence(std::uintptr_t stream) override;
  void adopt_thread() override { inner_->adopt_thread(); }
  void check_alive() const override;
  Bytes free_bytes() override;  // no more than the quota leaves
  Bytes held_bytes() override;

 private:
  template <class Work>
  auto run(Call call, Work&& work);
  // Calls the driver underneath unless the range is in use.
  template <class Work>
  void edit(Call call, void* address, Bytes size, Work&& work);
  void* where(Handle handle);  // it is mapped, or null
  void note(std::uint64_t id, void* address);
  std::uint64_t forget(void* address);  // the id that was noted there, or 0

  const std::shared_ptr<Driver> inner_;
  FaultPlan plan_;
  Quotas quotas_;
  WorkRanges work_;
  std::mutex mutex_;                                  // guards what follows
  std::unordered_map<std::uint64_t, void*> tied_;     // by id of the handle
  std::unordered_map<void*, std::uint64_t> tied_at_;  // the reverse
};

}  // namespace kvcached::vmm
