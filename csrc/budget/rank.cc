// A rank's beginning and end.
#include "budget/rank.h"

#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "budget/futex.h"

namespace kvcached::budget {
namespace {

// A neighbour gives idle memory back within milliseconds of its next look, a few a second.
constexpr std::chrono::seconds kFirstPageDeadline{5};
constexpr Milliseconds kFirstPageLook{50};

}  // namespace

Rank::Rank(std::shared_ptr<Segment> segment, std::uint32_t rank, std::shared_ptr<Budget> budget,
           std::string device, int row, std::shared_ptr<vmm::Driver> driver,
           std::vector<Extent> extents, Milliseconds fence_deadline, const PaceTerms& pace)
    : segment_(std::move(segment)),
      rank_(rank),
      budget_(std::move(budget)),
      row_(row),
      fence_deadline_(fence_deadline),
      memory_(budget_, row, std::move(driver), std::move(extents), segment_->num_pages()),
      threading_(std::make_unique<Threading>()),
      pages_(segment_->num_pages()),
      grow_tail_(segment_->part(rank).grow_done.load()),
      pace_(pace) {
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
  if (!process_.is_here()) {
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
  if (!process_.is_here())
    throw std::logic_error(name() + " belongs to process " + std::to_string(process_.pid()) +
                           ", this is its child " + std::to_string(getpid()) +
                           ": make a rank of its own there");
}

void Rank::check_page(std::int32_t page) const {
  if (page < 0 || static_cast<std::size_t>(page) >= pages_.size())
    throw std::logic_error("there is no page " + std::to_string(page) + " in " + name() +
                           ": pages are 0 to " + std::to_string(pages_.size() - 1));
}

RankCounters Rank::counters() const {
  check_process();
  std::lock_guard lock(mutex_);
  return counters_;
}

std::string Rank::fence_failure(const vmm::Fence& fence, std::uint64_t epoch) const {
  return name() + " waited " + std::to_string(fence_deadline_.count()) + " ms for " +
         fence.describe() + " before it may give back the pages of update " +
         std::to_string(epoch) + ": the device hangs, or a step never ends. The memory stays" +
         " mapped until this process ends; end it";
}

// Waits for all that may still use what is to be retired; false, and told, if it does not end. Who
// has failed has waited before.
bool Rank::fences_end() {
  const bool failed = !segment_->failure(rank_).empty();
  const auto end = std::chrono::steady_clock::now() + (failed ? Milliseconds(0) : fence_deadline_);
  for (const Retirement& retirement : to_retire_) {
    for (const auto& fence : retirement.fences) {
      const auto left = end - std::chrono::steady_clock::now();
      try {
        if (fence->wait(std::chrono::duration_cast<Milliseconds>(left))) continue;
      } catch (const vmm::DriverError&) {
        continue;  // on a lost device nothing runs
      }
      if (!failed) segment_->fail(rank_, fence_failure(*fence, retirement.epoch));
      return false;
    }
  }
  return true;
}

void Rank::close() {
  if (!process_.is_here()) return;
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
  if (!fences_end()) {
    memory_.abandon();
    throw std::runtime_error(segment_->failure(rank_));
  }
  to_retire_.clear();
  const bool clean = memory_.close();
  for (std::size_t page = 0; page < pages_.size(); ++page)
    settle(static_cast<std::int32_t>(page),
           memory_.holds(static_cast<std::int32_t>(page)) ? State::kQuarantined : State::kNone);
  if (clean) budget_->leave(row_);
}

}  // namespace kvcached::budget
