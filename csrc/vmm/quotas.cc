#include "vmm/quotas.h"

#include <algorithm>

#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

template <class Error>
void check(const std::optional<std::uint64_t>& quota, std::uint64_t used, std::uint64_t more,
           const char* what) {
  if (!quota || (used <= *quota && more <= *quota - used)) return;
  throw Error(
      text("injected quota: ", more, " ", what, " asked for, ", used, " of ", *quota, " in use"));
}

}  // namespace

void Quotas::set(const Quota& quota) {
  const std::lock_guard lock(mutex_);
  quota_ = quota;
}

void Quotas::take_memory(Bytes size) {
  const std::lock_guard lock(mutex_);
  check<OutOfMemory>(quota_.bytes, bytes_, size, "bytes");
  check<QuotaReached>(quota_.handles, handles_, 1, "handles");
  check<QuotaReached>(quota_.descriptors, handles_, 1, "descriptors");
  bytes_ += size;
  ++handles_;
}

void Quotas::give_memory(Bytes size) {
  const std::lock_guard lock(mutex_);
  bytes_ -= size;
  --handles_;
}

void Quotas::take_addresses(Bytes size) {
  const std::lock_guard lock(mutex_);
  check<QuotaReached>(quota_.addresses, addresses_, size, "bytes of addresses");
  addresses_ += size;
}

void Quotas::give_addresses(Bytes size) {
  const std::lock_guard lock(mutex_);
  addresses_ -= size;
}

Bytes Quotas::limited(Bytes free) const {
  const std::lock_guard lock(mutex_);
  if (!quota_.bytes) return free;
  return std::min(free, *quota_.bytes > bytes_ ? *quota_.bytes - bytes_ : 0);
}

}  // namespace kvcached::vmm
