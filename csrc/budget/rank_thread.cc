// What a rank's background thread does: growth, mapping ahead, release.
#include <stdexcept>

#include "budget/futex.h"
#include "budget/rank.h"

namespace kvcached::budget {
namespace {

// How long the thread sleeps without news. All work rings, so this only bounds a lost wake.
constexpr Milliseconds kIdleWait{1000};
// How often it looks at a fence that has not passed, or whether it may go on: well below a step,
// well above a look's cost.
constexpr Milliseconds kShortLook{1};
// Of many pages the scheduler half is told in lots: waking it is a system call.
constexpr std::uint32_t kToldAtOnce = 8;
// How often it looks at the device while somebody wants memory: others than members may use it.
constexpr Milliseconds kWantedLook{50};

}  // namespace

void Rank::serve() {
  auto& header = segment_->header();
  try {
    memory_.adopt_thread();
    while (!stopping_) {
      const std::uint32_t seen = header.doorbell.load();
      const bool wanted = serve_wish();
      const bool grew = serve_growth() || serve_orders();
      const bool in_haste = wanted || draining_ > 0;
      const Turn mapped = serve_ready(in_haste);
      const Turn retired = serve_retirement(in_haste);
      const bool worked = grew || mapped == Turn::kWorked || retired == Turn::kWorked;
      if (worked || stopping_) continue;
      const bool waits = mapped == Turn::kWaits || retired == Turn::kWaits;
      futex_wait(header.doorbell, seen, waits ? kShortLook : wanted ? kWantedLook : kIdleWait);
    }
  } catch (const std::exception& error) {
    segment_->fail(rank_, error.what());
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  threading_->changed.notify_all();
}

bool Rank::serve_wish() {
  const Bytes want = segment_->header().wish_pages.load() * page_bytes();
  budget_->set_idle(row_, segment_->header().idle_pages.load() * memory_.own_bytes());
  budget_->set_want(row_, want);
  if (want == 0 && !budget_->others_want(row_)) return false;
  memory_.look();
  segment_->set_sample(rank_, memory_.last_look());
  return true;
}

// Creates all that is asked for before it maps any: what others wait for is the promise. Pages that
// share granules need less than was promised for them, which may be enough for more.
bool Rank::serve_growth() {
  const std::uint32_t head = segment_->header().grow_head.load(std::memory_order_acquire);
  if (grow_tail_ == head) return false;
  acquire(
      head - grow_tail_, State::kOwned,
      [this, first = grow_tail_](std::uint32_t i) { return segment_->entry(first + i); },
      [this](std::uint32_t, State state) {
        const bool owned = state == State::kOwned;
        segment_->resolve(rank_, grow_tail_, owned ? Result::kOwned : Result::kRefused);
        if (++grow_tail_ % kToldAtOnce == 0) segment_->ring_scheduler();
      });
  segment_->ring_scheduler();
  return true;
}

template <typename PageAt, typename Tell>
void Rank::acquire(std::uint32_t count, State as, const PageAt& page_at, const Tell& tell) {
  std::uint32_t promised = memory_.lease(count, stopping_);
  segment_->set_sample(rank_, memory_.last_look());
  bool returned = false;  // some of a promise, since the last
  for (std::uint32_t i = 0; i < count && !stopping_; ++i) {
    const std::int32_t page = page_at(i);
    State state = State::kNone;
    if (promised == 0 && returned) {
      promised = memory_.lease(count - i, stopping_);
      returned = false;
    }
    if (!wants(page)) {
      state = State::kQuarantined;
    } else if (promised > 0) {
      --promised;
      state = create_page(page, as);
      returned = state == as && memory_.own_bytes() < page_bytes();
      if (state != as) {  // the next would most likely fail too
        memory_.unlease(promised);
        promised = 0;
      }
    }
    if (state != as) {
      std::lock_guard lock(mutex_);
      ++counters_.refused;
    }
    tell(i, state);
  }
  memory_.unlease(promised);
}

void Rank::take_pages(const Order& order, Outcome& outcome) {
  acquire(
      static_cast<std::uint32_t>(order.pages.size()), State::kPrepared,
      [&](std::uint32_t i) { return order.pages[i]; },
      [&](std::uint32_t i, State state) {
        if (state == State::kPrepared) outcome.held.push_back(order.pages[i]);
        if (state == State::kQuarantined) outcome.lost.push_back(order.pages[i]);
      });
}

bool Rank::wants(std::int32_t page) {
  check_page(page);
  std::lock_guard lock(mutex_);
  const State state = pages_[page].state;
  if (state == State::kNone || state == State::kQuarantined) return state == State::kNone;
  throw std::logic_error("page " + std::to_string(page) + " was asked for, but " + name() +
                         " owns it already: a page grows again only after it was released");
}

Rank::State Rank::create_page(std::int32_t page, State as) {
  try {
    memory_.create(page);
  } catch (const vmm::DriverError&) {
    const State left = memory_.holds(page) ? State::kQuarantined : State::kNone;
    if (left != State::kNone) settle(page, left);
    memory_.check_alive();
    return left;
  }
  {
    std::lock_guard lock(mutex_);
    ++counters_.created;
    if (as == State::kOwned) to_map_.push_back(page);
  }
  settle(page, as);
  return as;
}

std::vector<std::int32_t> Rank::take_to_map() {
  std::vector<std::int32_t> taken;
  std::lock_guard lock(mutex_);
  while (!to_map_.empty() && taken.size() < kMappedAtOnce) {
    const std::int32_t page = to_map_.front();
    to_map_.pop_front();
    // Otherwise a step was faster, or the entry is older than the page.
    if (pages_[page].state != State::kOwned || pages_[page].retired) continue;
    pages_[page].state = State::kMapping;
    taken.push_back(page);
  }
  counters_.mapped_ahead += taken.size();
  return taken;
}

Rank::Turn Rank::serve_ready(bool in_haste) {
  if (!in_haste && !pace_.allows()) {
    std::lock_guard lock(mutex_);
    return to_map_.empty() ? Turn::kIdle : Turn::kWaits;
  }
  const std::vector<std::int32_t> pages = take_to_map();
  if (pages.empty()) return Turn::kIdle;
  pace_.spend(pages.size() * memory_.own_bytes());
  try {
    map_pages(pages);
  } catch (const vmm::DriverError&) {
    memory_.check_alive();
    // The step that needs the page tries again, and says why it cannot.
  }
  return Turn::kWorked;
}

// Looks at the fences, which is a driver call, without the lock: a deque's elements stay where they
// are when others are added.
bool Rank::fences_passed(Retirement& retirement) {
  Fences& fences = retirement.fences;
  while (!fences.empty() && fences.back()->passed()) fences.pop_back();
  if (fences.empty()) return true;
  const auto now = std::chrono::steady_clock::now();
  if (retirement.waited_from == decltype(now){}) retirement.waited_from = now;
  if (now - retirement.waited_from >= fence_deadline_)
    throw std::runtime_error(fence_failure(*fences.back(), retirement.epoch));
  return false;
}

// One page a turn: growth and mapping do not wait for a long list, nor for a fence.
Rank::Turn Rank::serve_retirement(bool in_haste) {
  Retirement* retirement = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (to_retire_.empty()) return Turn::kIdle;
    retirement = &to_retire_.front();
  }
  if (!fences_passed(*retirement)) return Turn::kWaits;
  if (!in_haste && !pace_.allows()) return Turn::kWaits;
  std::int32_t page = 0;
  std::uint64_t epoch = 0;
  {
    std::lock_guard lock(mutex_);
    std::deque<std::int32_t>& pages = to_retire_.front().pages;
    epoch = to_retire_.front().epoch;
    if (!pages.empty()) {
      page = pages.front();
      pages.pop_front();
    }
  }
  if (page != 0) release_page(page, epoch);
  {
    std::lock_guard lock(mutex_);
    const Retirement& first = to_retire_.front();
    if (!first.pages.empty()) return Turn::kWorked;
    segment_->part(rank_).released_epoch.store(first.epoch, std::memory_order_release);
    to_retire_.pop_front();
    threading_->changed.notify_all();
  }
  orders_.tell({Outcome::Kind::kFenced, epoch, {}, {}});
  segment_->ring_scheduler();
  return Turn::kWorked;
}

void Rank::release_page(std::int32_t page, std::uint64_t epoch) {
  {
    std::unique_lock lock(mutex_);
    if (!threading_->changed.wait_for(lock, kMapDeadline, [&] { return settled(page); }))
      throw std::runtime_error("page " + std::to_string(page) +
                               " is to be retired, but a step of " + name() +
                               " has not finished mapping it");
    if (pages_[page].state == State::kNone) return;
    pages_[page].state = State::kReleasing;
  }
  let_go(page, epoch);
}

bool Rank::let_go(std::int32_t page, std::uint64_t epoch) {
  const bool gone = memory_.release(page);
  pace_.spend(memory_.own_bytes());
  if (gone) {
    std::lock_guard lock(mutex_);
    ++counters_.released;
  }
  settle(page, gone ? State::kNone : State::kQuarantined, epoch);
  if (!gone) memory_.check_alive();
  return gone;
}

}  // namespace kvcached::budget
