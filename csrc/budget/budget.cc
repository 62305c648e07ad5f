// The shared-memory implementation of Budget.
#include "budget/budget.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "budget/budget_formula.h"
#include "budget/fair_share.h"
#include "budget/lock_table.h"
#include "budget/record_file.h"

namespace kvcached::budget {
namespace {

using std::chrono::milliseconds;

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

// value -= bytes, unless less than `keep` would be left; false then.
bool take(Word& value, Bytes bytes, Bytes keep) {
  Bytes now = value.load();
  do {
    if (now < keep || bytes > now - keep) return false;
  } while (!value.compare_exchange_weak(now, now - bytes));
  return true;
}

std::string bytes(Bytes count) { return std::to_string(count) + " bytes"; }

class SharedBudget final : public Budget {
 public:
  SharedBudget(const std::string& directory, const std::string& device, Bytes capacity,
               Bytes headroom)
      : file_(directory, device, capacity, headroom) {
    if (capacity != 0) settle(capacity, headroom);
  }

  ~SharedBudget() override {
    if (::getpid() != pid_) return;
    for (int row = 0; row < kRows; ++row) {
      if (joined_[row].load() && record().rows[row].lease.load() == 0) give_back(row);
    }
  }

  Bytes capacity() const override { return record().header.capacity.load(); }
  Bytes headroom() const override { return record().header.headroom.load(); }
  Bytes created() const override { return sum_created(record()); }
  bool detached() const override { return file_.detached(); }
  std::uint32_t event() const override { return record().header.event.load(); }

  int join(const std::string& instance, std::uint32_t rank, Bytes limit, Bytes floor, Bytes claim,
           std::uint32_t weight) override;
  Grant set_terms(int row, Bytes limit, Bytes floor, Bytes claim, milliseconds deadline) override;
  void leave(int row) override;
  Grant lease(int row, Bytes bytes, Bytes device_free, milliseconds deadline,
              Bytes created_before) override;
  void unlease(int row, Bytes bytes) override;
  void mark_created(int row, Bytes bytes) override;
  void mark_released(int row, Bytes bytes) override;
  void set_want(int row, Bytes bytes) override;
  void set_idle(int row, Bytes bytes) override;
  int reap() override;
  std::vector<RowInfo> rows() const override;
  std::uint32_t wait_event(std::uint32_t seen, milliseconds deadline) const override;

  Bytes available(int row, Bytes device_free) const override {
    return grantable(snapshot(record()), row, {device_free, kNotSampled});
  }
  Bytes fair_share(int row, Bytes device_free) const override {
    return budget::fair_share(snapshot(record()), row, {device_free, kNotSampled});
  }
  Bytes reachable(int row, Bytes device_free) const override {
    return budget::reachable(snapshot(record()), row, {device_free, kNotSampled});
  }
  Bytes reclaim_target(int row, Bytes device_free) const override;

 private:
  Record& record() const { return file_.record(); }
  Row& own(int row) const;
  void check_process() const;
  void check_terms(const std::string& who, Bytes limit, Bytes floor) const;
  std::string guarantees(const Snapshot& all, Bytes floor, Bytes claim) const;
  void settle(Bytes capacity, Bytes headroom);
  int take_row();
  int reap_locked();
  void give_back(int row);
  void bump();

  RecordFile file_;
  const pid_t pid_ = ::getpid();
  std::array<std::atomic<bool>, kRows> joined_{};
};

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

void SharedBudget::check_terms(const std::string& who, Bytes limit, Bytes floor) const {
  if (floor <= limit) return;
  throw BudgetError(who + ": a floor of " + bytes(floor) + " is above the limit of " +
                    bytes(limit) + ". Raise the limit or lower the floor.");
}

// Empty when floor and claim fit beside the guarantees of `all`, else what is wrong.
std::string SharedBudget::guarantees(const Snapshot& all, Bytes floor, Bytes claim) const {
  const Bytes others = guaranteed(all, -1);
  if (add(others, add(floor, claim)) <= all.capacity) return "";
  return "a floor of " + bytes(floor) + " and a claim of " + bytes(claim) +
         " do not fit: " + bytes(others) + " of a capacity of " + bytes(all.capacity) +
         " are floors, claims and headroom already. Lower them or stop an engine.";
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

  const TableLock lock(file_.fd(), file_.path(), kStartDeadline);
  if (!lock) throw BudgetError(TableLock::held_message(file_.path(), kStartDeadline));
  reap_locked();
  const Snapshot all = snapshot(record());
  for (const Holding& holding : all) {
    const Row& other = record().rows[holding.row];
    if (other.rank.load() != rank || other.instance() != instance) continue;
    throw BudgetError(who + ": lives already, as process " + std::to_string(other.pid.load()) +
                      ". Choose another instance name or stop that one.");
  }
  const std::string wrong = guarantees(all, floor, claim);
  if (!wrong.empty()) throw BudgetError(who + ": " + wrong);

  const int index = take_row();
  Row& row = record().rows[index];
  row.clear();
  row.set_instance(instance);
  row.rank.store(rank);
  row.weight.store(weight);
  row.pid.store(static_cast<std::uint64_t>(pid_));
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
    const TableLock lock(file_.fd(), file_.path(), deadline);
    if (!lock) return Grant::kMissed;
    const bool lower = floor <= mine.floor.load() && claim <= mine.claim.load();
    const auto fits = [&] {
      return add(guaranteed(snapshot(record()), row), add(floor, claim)) <= capacity();
    };
    if (!lower && !fits() && (reap_locked() == 0 || !fits())) return Grant::kRefused;
    mine.limit.store(limit);
    mine.floor.store(floor);
    mine.claim.store(claim);
  }
  bump();
  return Grant::kGranted;
}

void SharedBudget::leave(int row) {
  if (::getpid() != pid_) return;
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
  bump();
}

Grant SharedBudget::lease(int row, Bytes bytes, Bytes device_free, milliseconds deadline,
                          Bytes created_before) {
  Row& mine = own(row);
  const Sample sample{device_free, std::min(created_before, created())};
  const TableLock lock(file_.fd(), file_.path(), deadline);
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

void SharedBudget::set_want(int row, Bytes bytes) {
  if (own(row).want.exchange(bytes) != bytes) bump();
}

void SharedBudget::set_idle(int row, Bytes bytes) {
  if (own(row).idle.exchange(bytes) >= bytes) return;
  for (const Holding& other : snapshot(record())) {
    if (other.want == 0) continue;
    bump();  // what somebody waits for could now be given
    return;
  }
}

Bytes SharedBudget::reclaim_target(int row, Bytes device_free) const {
  Snapshot all = snapshot(record());
  for (int i = 0; i < all.count; ++i) {
    Holding& holding = all.holdings[i];
    // Nobody gives anything back for the dead.
    if (holding.want != 0 && !file_.locks().alive(holding.row)) holding.want = 0;
  }
  return budget::reclaim_target(all, row, {device_free, kNotSampled});
}

void SharedBudget::bump() {
  EventWord& word = record().header.event;
  word.fetch_add(1);
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t SharedBudget::wait_event(std::uint32_t seen, milliseconds deadline) const {
  const EventWord& word = record().header.event;
  const auto end = until(deadline);
  while (word.load() == seen) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    const timespec timeout{static_cast<time_t>(left.count() / 1'000'000'000),
                           static_cast<long>(left.count() % 1'000'000'000)};
    if (::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0) != 0 &&
        errno == EINTR) {
      break;
    }
  }
  return word.load();
}

int SharedBudget::reap() {
  check_process();
  const TableLock lock(file_.fd(), file_.path(), kReapDeadline);
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
  if (reaped > 0) bump();
  return reaped;
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

}  // namespace

std::shared_ptr<Budget> Budget::open(const std::string& directory, const std::string& device,
                                     Bytes capacity, Bytes headroom) {
  return std::make_shared<SharedBudget>(directory, device, capacity, headroom);
}

}  // namespace kvcached::budget
