// Opening a record, and what any member may see of it.
#include "budget/lock_table.h"
#include "budget/shared_budget.h"

namespace kvcached::budget {

void SharedBudget::check_process() const {
  if (process_.is_here()) return;
  throw BudgetError(file_.path() + ": opened by process " + std::to_string(process_.pid()) +
                    ", used in its child " + std::to_string(::getpid()) + ". Open it again there.");
}

Row& SharedBudget::own(int row) const {
  check_process();
  if (row < 0 || row >= kRows || !joined_[row].load()) {
    throw BudgetError(file_.path() + ": row " + std::to_string(row) +
                      " was not joined through this object. Use what join() returned.");
  }
  return record().rows[row];
}

// Agrees on the record's capacity and headroom, or changes them while nobody else relies on them.
void SharedBudget::settle(Bytes capacity, Bytes headroom) {
  Header& header = record().header;
  const TableLock lock(file_.table(), kStartDeadline);
  if (!lock) throw BudgetError(TableLock::held_message(file_.path(), kStartDeadline));
  if (header.capacity.load() != capacity || header.headroom.load() != headroom) {
    reap_locked();
    const Snapshot all = snapshot(record());
    if (all.count > 0)
      conflict(capacity, headroom,
               "stop the " + std::to_string(all.count) + " that live (the first: '" +
                   record().rows[all.begin()->row].instance() + "')");
    if (file_.locks().pinned())
      conflict(capacity, headroom, "wait for the one that is starting to start and stop");
    header.capacity.store(capacity);
    header.headroom.store(headroom);
  }
  pin();
}

// Under the table's lock. From now on neither number changes while this object lives.
void SharedBudget::pin() {
  if (pinned_) return;
  file_.locks().pin();
  pinned_ = true;
}

// Under the table's lock: whoever opened without a capacity may have planned with an older one.
void SharedBudget::check_agreed() const {
  if (capacity() != agreed_capacity_ || headroom() != agreed_headroom_)
    conflict(agreed_capacity_, agreed_headroom_, "start again to take the new ones");
}

void SharedBudget::conflict(Bytes capacity, Bytes headroom, const std::string& advice) const {
  const Header& header = record().header;
  throw CapacityConflict(file_.path() + ": has a capacity of " + bytes(header.capacity.load()) +
                         " and a headroom of " + bytes(header.headroom.load()) +
                         ", asked for were " + bytes(capacity) + " and " + bytes(headroom) +
                         ". Give every engine on the device the same, or " + advice + ".");
}

std::vector<RowInfo> SharedBudget::rows() const {
  std::vector<RowInfo> live;
  for (const Holding& from : snapshot(record())) {
    if (!file_.locks().alive(from.row)) continue;
    const Row& row = record().rows[from.row];
    RowInfo info;
    info.instance = row.instance();
    info.rank = static_cast<std::uint32_t>(row.rank.load());
    info.pid = static_cast<std::int64_t>(row.pid.load());
    info.start_time = row.start_time.load();
    info.limit = from.limit;
    info.floor = from.floor;
    info.claim = from.claim;
    info.lease = from.lease;
    info.created = from.created;
    info.want = from.want;
    info.idle = from.idle;
    info.weight = static_cast<std::uint32_t>(from.weight);
    info.alive = true;
    live.push_back(std::move(info));
  }
  return live;
}

std::shared_ptr<Budget> Budget::open(const std::string& directory, const std::string& device,
                                     Bytes capacity, Bytes headroom) {
  return std::make_shared<SharedBudget>(directory, device, capacity, headroom);
}

}  // namespace kvcached::budget
