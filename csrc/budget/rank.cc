#include "budget/rank.h"

#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "budget/futex.h"

namespace kvcached::budget {
namespace {

// How long the thread sleeps without news. All work rings, so this only bounds a lost wake.
// A neighbour gives idle memory back within milliseconds of its next look, a few a second.
constexpr std::chrono::seconds kFirstPageDeadline{5};
constexpr Milliseconds kFirstPageLook{50};
constexpr Milliseconds kIdleWait{1000};
// A page that another thread maps is ready within microseconds; past this it is stuck.
constexpr std::chrono::seconds kMapDeadline{30};

}  // namespace

Rank::Rank(std::shared_ptr<Segment> segment, std::uint32_t rank, std::shared_ptr<Budget> budget,
           std::string device, int row, std::shared_ptr<vmm::Driver> driver,
           std::vector<Extent> extents)
    : segment_(std::move(segment)),
      rank_(rank),
      budget_(std::move(budget)),
      row_(row),
      pid_(getpid()),
      memory_(budget_, row, std::move(driver), std::move(extents), segment_->num_pages()),
      threading_(std::make_unique<Threading>()),
      pages_(segment_->num_pages()),
      grow_tail_(segment_->part(rank).grow_done.load()) {
  const RankPart& part = segment_->part(rank_);
  if (device.empty() || device.size() >= sizeof(part.device))
    throw std::invalid_argument("a device key has 1 to " + std::to_string(sizeof(part.device) - 1) +
                                " bytes, not " + std::to_string(device.size()) + ": '" + device +
                                "'");
  if (part.joined.load() != 0)
    throw std::invalid_argument(name() + " of " + segment_->path() +
                                " has joined already: give each worker a number of its own");
  take_first_page(device);
  try {
    start(device);
  } catch (...) {
    memory_.release(0);
    throw;
  }
}

// An idle neighbour may hold all there is as cached prefixes: it is told, and given time.
bool Rank::lease_first_page() {
  const auto end = std::chrono::steady_clock::now() + kFirstPageDeadline;
  std::uint32_t seen = budget_->event();
  bool leased = memory_.lease(1, stopping_) != 0;
  while (!leased && std::chrono::steady_clock::now() < end) {
    budget_->set_want(row_, page_bytes());
    seen = budget_->wait_event(seen, kFirstPageLook);
    leased = memory_.lease(1, stopping_) != 0;
  }
  budget_->set_want(row_, 0);
  return leased;
}

void Rank::take_first_page(const std::string& device) {
  if (!lease_first_page())
    throw BudgetError("the budget of " + device + " has no room for the first page (" +
                      std::to_string(page_bytes()) + " bytes) beside its other members, or its " +
                      "table is locked: free memory there, or give it a larger capacity");
  memory_.create(0);
  try {
    memory_.map(0);
  } catch (...) {
    memory_.release(0);
    throw;
  }
  ++counters_.created;
  settle(0, State::kReady);
}

void Rank::start(const std::string& device) {
  RankPart& part = segment_->part(rank_);
  std::strncpy(part.device, device.c_str(), sizeof(part.device) - 1);
  part.row = row_;
  threading_->thread = std::thread([this] { serve(); });
  part.joined.store(1, std::memory_order_release);
}

Rank::~Rank() {
  if (getpid() != pid_) {
    static_cast<void>(threading_.release());
    return;
  }
  try {
    close();
  } catch (const std::exception& error) {
    segment_->fail(rank_, error.what());
  }
}

void Rank::check_process() const {
  if (const pid_t now = getpid(); now != pid_)
    throw std::logic_error(name() + " belongs to process " + std::to_string(pid_) +
                           ", this is its child " + std::to_string(now) +
                           ": make a rank of its own there");
}

void Rank::check_page(std::int32_t page) const {
  if (page < 0 || static_cast<std::size_t>(page) >= pages_.size())
    throw std::logic_error("there is no page " + std::to_string(page) + " in " + name() +
                           ": pages are 0 to " + std::to_string(pages_.size() - 1));
}

// --- the background thread ---

void Rank::serve() {
  auto& header = segment_->header();
  try {
    while (!stopping_) {
      const std::uint32_t seen = header.doorbell.load();
      serve_wish();
      const bool grew = serve_growth();
      const bool mapped = serve_ready();
      const bool retired = serve_retirement();
      if (!grew && !mapped && !retired && !stopping_) futex_wait(header.doorbell, seen, kIdleWait);
    }
  } catch (const std::exception& error) {
    segment_->fail(rank_, error.what());
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  threading_->changed.notify_all();
}

void Rank::serve_wish() {
  budget_->set_idle(row_, segment_->header().idle_pages.load() * memory_.own_bytes());
  budget_->set_want(row_, segment_->header().wish_pages.load() * page_bytes());
}

// Creates all that is asked for before it maps any: what others wait for is the promise.
bool Rank::serve_growth() {
  const std::uint32_t head = segment_->header().grow_head.load(std::memory_order_acquire);
  if (grow_tail_ == head) return false;
  std::uint32_t promised = memory_.lease(head - grow_tail_, stopping_);
  for (; grow_tail_ != head && !stopping_; ++grow_tail_) {
    const std::int32_t page = segment_->entry(grow_tail_);
    bool owned = false;
    if (wants(page) && promised > 0) {
      --promised;
      owned = create_page(page);
      if (!owned) {  // the next would most likely fail too
        memory_.unlease(promised);
        promised = 0;
      }
    }
    if (!owned) {
      std::lock_guard lock(mutex_);
      ++counters_.refused;
    }
    segment_->resolve(rank_, grow_tail_, owned ? Result::kOwned : Result::kRefused);
  }
  memory_.unlease(promised);
  return true;
}

bool Rank::wants(std::int32_t page) {
  check_page(page);
  std::lock_guard lock(mutex_);
  const State state = pages_[page].state;
  if (state == State::kNone || state == State::kQuarantined) return state == State::kNone;
  throw std::logic_error("page " + std::to_string(page) + " was asked for, but " + name() +
                         " owns it already: a page grows again only after it was released");
}

bool Rank::create_page(std::int32_t page) {
  try {
    memory_.create(page);
  } catch (const vmm::DriverError&) {
    if (memory_.holds(page)) settle(page, State::kQuarantined);
    return false;
  }
  {
    std::lock_guard lock(mutex_);
    ++counters_.created;
    to_map_.push_back(page);
  }
  settle(page, State::kOwned);
  return true;
}

bool Rank::serve_ready() {
  std::int32_t page;
  {
    std::lock_guard lock(mutex_);
    if (to_map_.empty()) return false;
    page = to_map_.front();
    to_map_.pop_front();
    // Otherwise a step was faster, or the entry is older than the page.
    if (pages_[page].state != State::kOwned || pages_[page].retired) return true;
    pages_[page].state = State::kMapping;
    ++counters_.mapped_ahead;
  }
  try {
    map_page(page);
  } catch (const vmm::DriverError&) {
    // The step that needs the page tries again, and says why it cannot.
  }
  return true;
}

// One page a turn: growth and mapping do not wait for a long list.
bool Rank::serve_retirement() {
  std::int32_t page = 0;
  {
    std::lock_guard lock(mutex_);
    if (to_retire_.empty()) return false;
    std::deque<std::int32_t>& pages = to_retire_.front().pages;
    if (!pages.empty()) {
      page = pages.front();
      pages.pop_front();
    }
  }
  if (page != 0) release_page(page);
  {
    std::lock_guard lock(mutex_);
    const Retirement& first = to_retire_.front();
    if (!first.pages.empty()) return true;
    segment_->part(rank_).released_epoch.store(first.epoch, std::memory_order_release);
    to_retire_.pop_front();
    threading_->changed.notify_all();
  }
  segment_->ring_scheduler();
  return true;
}

void Rank::release_page(std::int32_t page) {
  {
    std::unique_lock lock(mutex_);
    if (!threading_->changed.wait_for(lock, kMapDeadline, [&] { return settled(page); }))
      throw std::runtime_error("page " + std::to_string(page) +
                               " is to be retired, but a step of " + name() +
                               " has not finished mapping it");
    if (pages_[page].state == State::kNone) return;
    pages_[page].state = State::kReleasing;
  }
  const bool gone = memory_.release(page);
  if (gone) {
    std::lock_guard lock(mutex_);
    ++counters_.released;
  }
  settle(page, gone ? State::kNone : State::kQuarantined);
}

// --- any thread ---

// The page is kMapping, by the caller.
void Rank::map_page(std::int32_t page) {
  try {
    memory_.map(page);
  } catch (const vmm::Quarantined&) {
    settle(page, State::kQuarantined);
    throw;
  } catch (...) {
    settle(page, State::kOwned);
    throw;
  }
  settle(page, State::kReady);
}

// Ends what the caller did with a page, and publishes it.
void Rank::settle(std::int32_t page, State state) {
  std::lock_guard lock(mutex_);
  pages_[page].state = state;
  if (state == State::kNone || state == State::kQuarantined) pages_[page].retired = false;
  segment_->set_page_state(rank_, page,
                           state == State::kNone          ? PageState::kVirtual
                           : state == State::kQuarantined ? PageState::kQuarantined
                                                          : PageState::kOwned);
  RankPart& part = segment_->part(rank_);
  part.mapped_bytes.store(memory_.mapped_bytes(), std::memory_order_relaxed);
  part.created_bytes.store(memory_.created_bytes(), std::memory_order_relaxed);
  threading_->changed.notify_all();
}

void Rank::make_ready(const std::vector<std::int32_t>& pages) {
  check_process();
  for (std::int32_t page : pages) {
    check_page(page);
    std::unique_lock lock(mutex_);
    if (!threading_->changed.wait_for(lock, kMapDeadline, [&] { return settled(page); }))
      throw std::runtime_error(name() + "'s background thread did not map page " +
                               std::to_string(page) + " in time");
    Page& mine = pages_[page];
    if (mine.state == State::kQuarantined)
      throw vmm::Quarantined(name() + " lost page " + std::to_string(page) +
                             ", which a step is about to use, to a driver error");
    if (closed_ || mine.retired || (mine.state != State::kOwned && mine.state != State::kReady))
      throw std::logic_error(name() + " does not own page " + std::to_string(page) +
                             ", which a step is about to use" +
                             (closed_        ? ": it is closed"
                              : mine.retired ? ": it was told to retire it"
                                             : ""));
    if (mine.state == State::kReady) continue;
    mine.state = State::kMapping;
    ++counters_.mapped_in_step;
    lock.unlock();
    map_page(page);
  }
}

void Rank::retire(const std::vector<std::int32_t>& pages, std::uint64_t epoch) {
  check_process();
  for (std::int32_t page : pages) check_page(page);
  {
    std::lock_guard lock(mutex_);
    if (epoch < last_epoch_)
      throw std::logic_error("epoch " + std::to_string(epoch) + " came to " + name() + " after " +
                             std::to_string(last_epoch_));
    to_retire_.push_back({{pages.begin(), pages.end()}, epoch});
    last_epoch_ = epoch;
    for (std::int32_t page : pages)
      if (page != 0 && pages_[page].state != State::kNone) pages_[page].retired = true;
  }
  futex_bump(segment_->header().doorbell);
}

bool Rank::drain(Milliseconds deadline) {
  check_process();
  std::unique_lock lock(mutex_);
  threading_->changed.wait_for(lock, deadline, [&] { return to_retire_.empty() || ended_; });
  return to_retire_.empty();
}

RankCounters Rank::counters() const {
  check_process();
  std::lock_guard lock(mutex_);
  return counters_;
}

void Rank::close() {
  if (getpid() != pid_) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  stopping_ = true;
  futex_bump(segment_->header().doorbell);
  if (threading_->thread.joinable()) threading_->thread.join();
  {
    // A step under way finishes its page and finds the rank closed at the next.
    std::unique_lock lock(mutex_);
    for (std::size_t page = 0; page < pages_.size(); ++page)
      threading_->changed.wait_for(lock, kMapDeadline,
                                   [&] { return settled(static_cast<std::int32_t>(page)); });
  }
  to_retire_.clear();
  const bool clean = memory_.close();
  for (std::size_t page = 0; page < pages_.size(); ++page)
    settle(static_cast<std::int32_t>(page),
           memory_.holds(static_cast<std::int32_t>(page)) ? State::kQuarantined : State::kNone);
  if (clean) budget_->leave(row_);
}

}  // namespace kvcached::budget
