// The accounts of one row: leased, created, released.
#include <algorithm>

#include "budget/lock_table.h"
#include "budget/shared_budget.h"

namespace kvcached::budget {
namespace {

// value -= bytes, unless less than `keep` would be left; false then.
bool take(Word& value, Bytes bytes, Bytes keep) {
  Bytes now = value.load();
  do {
    if (now < keep || bytes > now - keep) return false;
  } while (!value.compare_exchange_weak(now, now - bytes));
  return true;
}

}  // namespace

Grant SharedBudget::lease(int row, Bytes bytes, Bytes device_free, milliseconds deadline,
                          Bytes created_before) {
  Row& mine = own(row);
  const Sample sample{device_free, std::min(created_before, created())};
  const TableLock lock(file_.table(), deadline);
  if (!lock) return Grant::kMissed;
  const auto fits = [&] { return bytes <= grantable(snapshot(record()), row, sample); };
  if (!fits() && (reap_locked() == 0 || !fits())) return Grant::kRefused;
  mine.lease.fetch_add(bytes);
  mine.want.store(sub(mine.want.load(), bytes));
  return Grant::kGranted;
}

void SharedBudget::unlease(int row, Bytes count) {
  Row& mine = own(row);
  if (!take(mine.lease, count, mine.created.load())) {
    throw BudgetError(file_.path() + ": row " + std::to_string(row) + " cannot unlease " +
                      bytes(count) + ": it leases " + bytes(mine.lease.load()) + ", of which " +
                      bytes(mine.created.load()) + " are created.");
  }
  bump();
}

void SharedBudget::mark_created(int row, Bytes count) {
  Row& mine = own(row);
  Bytes now = mine.created.load();
  do {
    const Bytes leased = mine.lease.load();
    if (now > leased || count > leased - now) {
      throw BudgetError(file_.path() + ": row " + std::to_string(row) + " cannot create " +
                        bytes(count) + ": it leases " + bytes(leased) + ", of which " + bytes(now) +
                        " are created. Lease first.");
    }
  } while (!mine.created.compare_exchange_weak(now, now + count));
}

void SharedBudget::mark_released(int row, Bytes count) {
  Row& mine = own(row);
  if (!take(mine.created, count, 0)) {
    throw BudgetError(file_.path() + ": row " + std::to_string(row) + " cannot release " +
                      bytes(count) + ": only " + bytes(mine.created.load()) + " are created.");
  }
  mine.lease.fetch_sub(count);
  bump();
}

}  // namespace kvcached::budget
