// What a rank's engine calls around its steps, and how a page's state is settled.
#include <stdexcept>

#include "budget/futex.h"
#include "budget/rank.h"

namespace kvcached::budget {

// The pages are kMapping, by the caller. All are tried; raises the first error.
void Rank::map_pages(const std::vector<std::int32_t>& pages) {
  std::vector<State> found(pages.size(), State::kReady);
  std::exception_ptr error;
  const auto attempt = [&](State& state, const auto& work) {
    try {
      work();
    } catch (const vmm::Quarantined&) {
      state = State::kQuarantined;
      if (!error) error = std::current_exception();
    } catch (...) {
      state = State::kOwned;
      if (!error) error = std::current_exception();
    }
  };
  for (std::size_t i = 0; i < pages.size(); ++i) attempt(found[i], [&] { memory_.map(pages[i]); });
  State zeroed = State::kReady;
  attempt(zeroed, [&] { memory_.finish(); });
  for (std::size_t i = 0; i < pages.size(); ++i)
    settle(pages[i], found[i] == State::kReady ? zeroed : found[i]);
  if (error) std::rethrow_exception(error);
}

void Rank::settle(std::int32_t page, State state) {
  std::lock_guard lock(mutex_);
  settle_locked(page, state, last_epoch_);
}

void Rank::settle(std::int32_t page, State state, std::uint64_t epoch) {
  std::lock_guard lock(mutex_);
  settle_locked(page, state, epoch);
}

// Under the lock: a rank's recorder has one writer at a time.
void Rank::record(std::int32_t page, State from, State to, std::uint64_t epoch) {
  const auto traced = [](State state) {
    return state == State::kNone       ? TracedState::kVirtual
           : state == State::kPrepared ? TracedState::kPreparing
           : state == State::kOwned    ? TracedState::kOwned
           : state == State::kReady    ? TracedState::kMapped
           : state == State::kRetained ? TracedState::kRetiring
                                       : TracedState::kQuarantined;
  };
  if (from != to) segment_->record(rank_, page, traced(from), traced(to), epoch);
}

// Ends what the caller did with a page, and publishes it.
void Rank::settle_locked(std::int32_t page, State state, std::uint64_t epoch) {
  record(page, pages_[page].settled, state, epoch);
  pages_[page].state = pages_[page].settled = state;
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

void Rank::check_usable(std::int32_t page) const {
  const Page& mine = pages_[page];
  if (mine.state == State::kQuarantined)
    throw vmm::Quarantined(name() + " lost page " + std::to_string(page) +
                           ", which a step is about to use, to a driver error");
  const bool between = mine.state == State::kPrepared || mine.state == State::kRetained;
  if (closed_ || mine.retired || between || mine.state == State::kNone ||
      mine.state == State::kReleasing)
    throw std::logic_error(name() + " does not own page " + std::to_string(page) +
                           ", which a step is about to use" +
                           (closed_        ? ": it is closed"
                            : mine.retired ? ": it was told to retire it"
                            : between      ? ": it is in a transaction"
                                           : ""));
}

// Under the lock: takes the pages that nobody maps yet for this thread.
std::vector<std::int32_t> Rank::begin_mapping(const std::vector<std::int32_t>& pages) {
  std::vector<std::int32_t> mine;
  for (std::int32_t page : pages) {
    check_usable(page);
    if (pages_[page].state == State::kOwned) mine.push_back(page);
  }
  for (std::int32_t page : mine) pages_[page].state = State::kMapping;
  counters_.mapped_in_step += mine.size();
  return mine;
}

// Maps what nobody has begun while the background thread ends what it has; what that thread then
// could not map is the step's to try.
void Rank::make_ready(const std::vector<std::int32_t>& pages) {
  check_process();
  for (std::int32_t page : pages) check_page(page);
  std::unique_lock lock(mutex_);
  std::vector<std::int32_t> others;
  for (std::int32_t page : pages)
    if (pages_[page].state == State::kMapping) others.push_back(page);
  map_unlocked(begin_mapping(pages), lock);
  for (std::int32_t page : others) {
    if (!threading_->changed.wait_for(lock, kMapDeadline, [&] { return settled(page); }))
      throw std::runtime_error(name() + "'s background thread did not map page " +
                               std::to_string(page) + " in time");
  }
  map_unlocked(begin_mapping(others), lock);
}

void Rank::map_unlocked(const std::vector<std::int32_t>& pages,
                        std::unique_lock<std::mutex>& lock) {
  if (pages.empty()) return;
  lock.unlock();
  map_pages(pages);
  lock.lock();
}

void Rank::retire(const std::vector<std::int32_t>& pages, std::uint64_t epoch, Fences fences) {
  check_process();
  for (std::int32_t page : pages) check_page(page);
  for (const auto& fence : fences)
    if (!fence) throw std::invalid_argument("retire: one of the fences is none");
  {
    std::lock_guard lock(mutex_);
    if (epoch < last_epoch_)
      throw std::logic_error("epoch " + std::to_string(epoch) + " came to " + name() + " after " +
                             std::to_string(last_epoch_));
    to_retire_.push_back({{pages.begin(), pages.end()}, epoch, std::move(fences)});
    last_epoch_ = epoch;
    for (std::int32_t page : pages)
      if (page != 0 && pages_[page].state != State::kNone) pages_[page].retired = true;
  }
  futex_bump(segment_->header().doorbell);
}

bool Rank::drain(Milliseconds deadline) {
  check_process();
  ++draining_;
  futex_bump(segment_->header().doorbell);
  std::unique_lock lock(mutex_);
  threading_->changed.wait_for(lock, deadline, [&] { return to_retire_.empty() || ended_; });
  --draining_;
  return to_retire_.empty();
}

}  // namespace kvcached::budget
