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
    if (holding.want == 0) continue;
    // Nobody gives anything back for the dead, nor an instance for a rank of its own.
    const bool sibling = holding.row != row && same_instance(row, holding.row);
    if (sibling || !file_.locks().alive(holding.row)) holding.want = 0;
  }
  return budget::reclaim_target(all, row, sample);
}

// What the instance's other ranks could give is in pages that it has.
Bytes SharedBudget::reachable(int row, const Sample& sample) const {
  Snapshot all = snapshot(record());
  for (int i = 0; i < all.count; ++i) {
    Holding& holding = all.holdings[i];
    if (holding.idle != 0 && same_instance(row, holding.row)) holding.idle = 0;
  }
  return budget::reachable(all, row, sample);
}

Bytes SharedBudget::fair_share(int row, const Sample& sample) const {
  const Snapshot all = snapshot(record());
  return others_want(row) ? budget::fair_share(all, row, sample) : all.of(row).limit;
}

bool SharedBudget::same_instance(int row, int other) const {
  const Row &mine = record().rows[row], &theirs = record().rows[other];
  return std::equal(std::begin(theirs.name), std::end(theirs.name), std::begin(mine.name),
                    [](const Word& a, const Word& b) { return a.load() == b.load(); });
}

bool SharedBudget::others_want(int row) const {
  for (int other = 0; other < kRows; ++other) {
    const Row& theirs = record().rows[other];
    if (theirs.want.load() == 0 || theirs.taken.load() == 0) continue;
    if (!same_instance(row, other)) return true;
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
