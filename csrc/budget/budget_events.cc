// Wants, idle bytes, and waking those who wait.
#include <linux/futex.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iterator>

#include "budget/lock_table.h"
#include "budget/shared_budget.h"

namespace kvcached::budget {
namespace {

std::uint32_t wait_until(const EventWord& word, std::uint32_t seen,
                         std::chrono::steady_clock::time_point end) {
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

}  // namespace

void SharedBudget::set_want(int row, Bytes bytes) {
  if (own(row).want.exchange(bytes) != bytes) bump_all();
}

void SharedBudget::set_idle(int row, Bytes bytes) {
  if (own(row).idle.exchange(bytes) >= bytes) return;
  for (const Holding& other : snapshot(record())) {
    if (other.want == 0) continue;
    bump_all();  // what somebody waits for could now be given
    return;
  }
}

Bytes SharedBudget::reclaim_target(int row, const Sample& sample, Bytes own_idle) const {
  Snapshot all = snapshot(record());
  for (int i = 0; i < all.count; ++i) {
    Holding& holding = all.holdings[i];
    if (holding.row == row && own_idle != kNotSampled) holding.idle = own_idle;
    // Nobody gives anything back for the dead.
    if (holding.want != 0 && !file_.locks().alive(holding.row)) holding.want = 0;
  }
  return budget::reclaim_target(all, row, sample);
}

bool SharedBudget::others_want(int row) const {
  const Row& mine = record().rows[row];
  for (const Row& other : record().rows) {
    if (other.want.load() == 0 || other.taken.load() == 0) continue;
    const bool same =
        std::equal(std::begin(other.name), std::end(other.name), std::begin(mine.name),
                   [](const Word& a, const Word& b) { return a.load() == b.load(); });
    if (!same) return true;
  }
  return false;
}

void SharedBudget::bump() { bump(record().header.event); }

void SharedBudget::bump_all() {
  bump(record().header.event);
  bump(record().header.wanted);
}

void SharedBudget::bump(EventWord& word) {
  word.fetch_add(1);
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t SharedBudget::wait_event(std::uint32_t seen, milliseconds deadline) const {
  return wait_until(record().header.event, seen, until(deadline));
}

std::uint32_t SharedBudget::wait_wanted(int row, std::uint32_t seen, milliseconds deadline) const {
  const auto end = until(deadline);
  do {
    seen = wait_until(record().header.wanted, seen, end);
  } while (!others_want(row) && std::chrono::steady_clock::now() < end);
  return seen;
}

}  // namespace kvcached::budget
