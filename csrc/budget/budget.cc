// Opening a record, and what any member may see of it.
#include "budget/lock_table.h"
#include "budget/shared_budget.h"

namespace kvcached::budget {

void SharedBudget::check_process() const {
  if (::getpid() == pid_) return;
  throw BudgetError(file_.path() + ": opened by process " + std::to_string(pid_) +
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

// Changes capacity and headroom while nobody lives, or refuses.
void SharedBudget::settle(Bytes capacity, Bytes headroom) {
  Header& header = record().header;
  const TableLock lock(file_.fd(), file_.path(), kStartDeadline);
  if (!lock) throw BudgetError(TableLock::held_message(file_.path(), kStartDeadline));
  if (header.capacity.load() == capacity && header.headroom.load() == headroom) return;
  reap_locked();
  const Snapshot all = snapshot(record());
  if (all.count > 0) {
    const Row& row = record().rows[all.begin()->row];
    throw CapacityConflict(
        file_.path() + ": has a capacity of " + bytes(all.capacity) + " and a headroom of " +
        bytes(all.headroom) + ", asked for were " + bytes(capacity) + " and " + bytes(headroom) +
        ". Give every engine on the device the same, or stop the " + std::to_string(all.count) +
        " that live (the first: '" + row.instance() + "').");
  }
  header.capacity.store(capacity);
  header.headroom.store(headroom);
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
