#include "budget/rank_orders.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "budget/futex.h"
#include "budget/rank.h"

namespace kvcached::budget {

RankOrders::~RankOrders() {
  if (fd_ >= 0) ::close(fd_);
}

void RankOrders::add(Order order) {
  const std::lock_guard lock(mutex_);
  orders_.push_back(std::move(order));
}

std::optional<Order> RankOrders::next() {
  const std::lock_guard lock(mutex_);
  if (orders_.empty()) return std::nullopt;
  Order first = std::move(orders_.front());
  orders_.pop_front();
  return first;
}

void RankOrders::tell(Outcome outcome) {
  if (fd_ < 0) return;
  const std::lock_guard lock(mutex_);
  outcomes_.push_back(std::move(outcome));
  eventfd_write(fd_, 1);
}

int RankOrders::open_fd() {
  const std::lock_guard lock(mutex_);
  if (fd_ < 0) fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd_;
}

std::vector<Outcome> RankOrders::take_outcomes() {
  const std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  if (fd_ >= 0) eventfd_read(fd_, &count);
  return std::exchange(outcomes_, {});
}

void Rank::take(std::uint64_t id, std::vector<std::int32_t> pages) {
  check_process();
  for (std::int32_t page : pages) check_page(page);
  orders_.add({Order::Kind::kTake, id, std::move(pages), {}});
  futex_bump(segment_->header().doorbell);
}

void Rank::unmap(std::uint64_t id, std::vector<std::int32_t> pages) {
  check_process();
  for (std::int32_t page : pages) check_page(page);
  orders_.add({Order::Kind::kUnmap, id, std::move(pages), {}});
  futex_bump(segment_->header().doorbell);
}

void Rank::settle(std::uint64_t id, std::vector<std::int32_t> own,
                  std::vector<std::int32_t> release) {
  check_process();
  for (std::int32_t page : own) check_page(page);
  for (std::int32_t page : release) check_page(page);
  orders_.add({Order::Kind::kSettle, id, std::move(own), std::move(release)});
  futex_bump(segment_->header().doorbell);
}

bool Rank::serve_orders() {
  const std::optional<Order> order = orders_.next();
  if (!order) return false;
  Outcome outcome = carry_out(*order);
  if (!stopping_) orders_.tell(std::move(outcome));
  return true;
}

Outcome Rank::carry_out(const Order& order) {
  const bool settles = order.kind == Order::Kind::kSettle;
  Outcome outcome{settles ? Outcome::Kind::kSettled : Outcome::Kind::kAttempted, order.id, {}, {}};
  switch (order.kind) {
    case Order::Kind::kTake:
      take_pages(order, outcome);
      break;
    case Order::Kind::kUnmap:
      unmap_pages(order, outcome);
      break;
    case Order::Kind::kSettle:
      settle_pages(order, outcome);
      break;
  }
  return outcome;
}

// Whoever begins to unmap waits for a mapping of the page under way, as release_page() does.
void Rank::unmap_pages(const Order& order, Outcome& outcome) {
  for (std::int32_t page : order.pages) {
    {
      std::unique_lock lock(mutex_);
      if (!threading_->changed.wait_for(lock, kMapDeadline, [&] { return settled(page); }))
        throw std::runtime_error("page " + std::to_string(page) + " is to be unmapped, but a step" +
                                 " of " + name() + " has not finished mapping it");
      Page& mine = pages_[page];
      if (mine.state == State::kQuarantined) {
        outcome.lost.push_back(page);
        continue;
      }
      if (page == 0 || (mine.state != State::kOwned && mine.state != State::kReady))
        throw std::logic_error("page " + std::to_string(page) + " is to be unmapped, which " +
                               name() + " does not own");
      mine.state = State::kReleasing;
    }
    const bool unmapped = memory_.unmap(page);
    pace_.spend(memory_.own_bytes());
    // One that is mapped in part is owned, and the next make_ready() maps the rest.
    settle(page, unmapped ? State::kRetained : State::kOwned);
    if (unmapped) outcome.held.push_back(page);
    if (!unmapped) memory_.check_alive();
  }
}

void Rank::begin_settling(std::int32_t page) {
  const std::lock_guard lock(mutex_);
  const State state = pages_[page].state;
  if (state != State::kPrepared && state != State::kRetained)
    throw std::logic_error("a transaction ends for page " + std::to_string(page) + ", which " +
                           name() + " has not prepared");
  pages_[page].state = State::kReleasing;
}

void Rank::settle_pages(const Order& order, Outcome& outcome) {
  for (std::int32_t page : order.pages) {
    begin_settling(page);
    settle(page, State::kOwned);
    const std::lock_guard lock(mutex_);
    to_map_.push_back(page);
  }
  for (std::int32_t page : order.release) {
    begin_settling(page);
    if (!let_go(page, last_epoch_)) outcome.lost.push_back(page);
  }
}

}  // namespace kvcached::budget
