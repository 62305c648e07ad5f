// Who takes part: joining, terms, leaving, and reaping the dead.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "budget/lock_table.h"
#include "budget/shared_budget.h"

namespace kvcached::budget {
namespace {

// A reap that meets a busy table leaves the dead to whoever keeps it busy.
constexpr milliseconds kReapDeadline{100};

// In clock ticks since boot: field 22 of /proc/self/stat, counted behind the name's last ')'.
std::uint64_t own_start_time() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

void SharedBudget::check_terms(const std::string& who, Bytes limit, Bytes floor) const {
  if (floor <= limit) return;
  throw BudgetError(who + ": a floor of " + bytes(floor) + " is above the limit of " +
                    bytes(limit) + ". Raise the limit or lower the floor.");
}

// Empty when a floor fits beside the guarantees of `all`, else what is wrong.
std::string SharedBudget::guarantees(const Snapshot& all, Bytes floor) const {
  const Bytes others = guaranteed(all, -1);
  if (add(others, floor) <= all.capacity) return "";
  return "a floor of " + bytes(floor) + " does not fit: " + bytes(others) + " of a capacity of " +
         bytes(all.capacity) + " are floors and headroom already. Lower them or stop an engine.";
}

int SharedBudget::join(const std::string& instance, std::uint32_t rank, Bytes limit, Bytes floor,
                       Bytes claim, std::uint32_t weight) {
  check_process();
  const std::string who = file_.path() + ": '" + instance + "' rank " + std::to_string(rank);
  if (instance.empty() || instance.size() > kNameBytes) {
    throw BudgetError(who + ": a name of " + bytes(instance.size()) + "; allowed are 1 to " +
                      bytes(kNameBytes) + ".");
  }
  if (instance.find('\0') != std::string::npos) {
    throw BudgetError(file_.path() + ": an instance name with a NUL in it; allowed is any other.");
  }
  check_terms(who, limit, floor);
  if (weight == 0) throw BudgetError(who + ": a weight of 0; allowed is 1 or more, 100 is usual.");

  const TableLock lock(file_.table(), kStartDeadline);
  if (!lock) throw BudgetError(TableLock::held_message(file_.path(), kStartDeadline));
  check_agreed();
  reap_locked();
  const Snapshot all = snapshot(record());
  for (const Holding& holding : all) {
    const Row& other = record().rows[holding.row];
    if (other.rank.load() != rank || other.instance() != instance) continue;
    throw BudgetError(who + ": lives already, as process " + std::to_string(other.pid.load()) +
                      ". Choose another instance name or stop that one.");
  }
  const std::string wrong = guarantees(all, floor);
  if (!wrong.empty()) throw BudgetError(who + ": " + wrong);

  pin();
  const int index = take_row();
  Row& row = record().rows[index];
  row.clear();
  row.set_instance(instance);
  row.rank.store(rank);
  row.weight.store(weight);
  row.pid.store(static_cast<std::uint64_t>(process_.pid()));
  row.start_time.store(own_start_time());
  row.limit.store(limit);
  row.floor.store(floor);
  row.claim.store(claim);
  row.taken.store(1);
  joined_[index].store(true);
  return index;
}

int SharedBudget::take_row() {
  for (int row = 0; row < kRows; ++row) {
    if (record().rows[row].taken.load() == 0 && file_.locks().try_hold(row)) return row;
  }
  throw BudgetError(file_.path() + ": each of its " + std::to_string(kRows) +
                    " rows is taken. Stop an engine or use another budget_dir.");
}

Grant SharedBudget::set_terms(int row, Bytes limit, Bytes floor, Bytes claim,
                              milliseconds deadline) {
  Row& mine = own(row);
  check_terms(file_.path() + ": row " + std::to_string(row), limit, floor);
  {
    const TableLock lock(file_.table(), deadline);
    if (!lock) return Grant::kMissed;
    const bool lower = floor <= mine.floor.load();
    const auto fits = [&] { return add(guaranteed(snapshot(record()), row), floor) <= capacity(); };
    if (!lower && !fits() && (reap_locked() == 0 || !fits())) return Grant::kRefused;
    mine.limit.store(limit);
    mine.floor.store(floor);
    mine.claim.store(claim);
  }
  bump_all();
  return Grant::kGranted;
}

void SharedBudget::leave(int row) {
  if (!process_.is_here()) return;
  const Row& mine = own(row);
  if (mine.lease.load() != 0) {
    throw BudgetError(file_.path() + ": row " + std::to_string(row) + " still leases " +
                      bytes(mine.lease.load()) + " (created: " + bytes(mine.created.load()) +
                      "), allowed is 0. Release its memory first.");
  }
  give_back(row);
}

void SharedBudget::give_back(int row) {
  joined_[row].store(false);
  record().rows[row].clear();
  file_.locks().release(row);
  bump_all();
}

int SharedBudget::reap() {
  check_process();
  const TableLock lock(file_.table(), kReapDeadline);
  return lock ? reap_locked() : 0;
}

int SharedBudget::reap_locked() {
  int reaped = 0;
  for (int row = 0; row < kRows; ++row) {
    if (record().rows[row].taken.load() == 0 || !file_.locks().try_hold(row)) continue;
    record().rows[row].clear();
    file_.locks().release(row);
    ++reaped;
  }
  if (reaped > 0) bump_all();
  return reaped;
}

}  // namespace kvcached::budget
