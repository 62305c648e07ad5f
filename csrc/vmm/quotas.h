// How much of each resource a driver object may use: an account for tests. Thread safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "vmm/driver.h"

namespace kvcached::vmm {

// A quota of anything but physical memory is used up; that of memory is an OutOfMemory.
class QuotaReached : public DriverError {
 public:
  using DriverError::DriverError;
};

// Nothing: no quota.
struct Quota {
  std::optional<Bytes> bytes;            // of memory alive: create() raises OutOfMemory
  std::optional<std::uint64_t> handles;  // alive: create() raises QuotaReached
  // A driver whose handles are exported as file descriptors needs one for each that is alive; no
  // driver here does so yet, so it is emulated: one a live handle. create() raises QuotaReached.
  std::optional<std::uint64_t> descriptors;
  std::optional<Bytes> addresses;  // reserved: reserve() raises QuotaReached
};

class Quotas {
 public:
  void set(const Quota& quota);
  // Each takes before the call underneath, and is taken back if that fails.
  void take_memory(Bytes size);
  void give_memory(Bytes size);
  void take_addresses(Bytes size);
  void give_addresses(Bytes size);
  // No more than the quota of bytes leaves.
  Bytes limited(Bytes free) const;

 private:
  mutable std::mutex mutex_;
  Quota quota_;
  Bytes bytes_ = 0, addresses_ = 0;
  std::uint64_t handles_ = 0;
};

}  // namespace kvcached::vmm
