#include "budget/rank.h"

#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "budget/futex.h"

namespace kvcached::budget {
namespace {

// The table's lock is held for microseconds; a rank that does not get it for this long says no.
constexpr Milliseconds kLeaseDeadline{50};
// How long the thread sleeps without news; work always rings, so this bounds only lost wakes.
constexpr Milliseconds kIdleWait{200};
// A page that the background thread maps is ready within microseconds; past this it is stuck.
constexpr std::chrono::seconds kMapDeadline{30};

}  // namespace

Rank::Rank(std::shared_ptr<Segment> segment, std::uint32_t rank, std::shared_ptr<Budget> budget,
           std::string device, int row, std::shared_ptr<vmm::Driver> driver,
           std::vector<Extent> extents)
    : segment_(std::move(segment)),
      rank_(rank),
      budget_(std::move(budget)),
      row_(row),
      driver_(std::move(driver)),
      extents_(std::move(extents)),
      pid_(getpid()),
      pages_(segment_->num_pages()) {
  for (const Extent& extent : extents_) page_bytes_ += extent.bytes;
  RankPart& part = segment_->part(rank_);
  if (page_bytes_ == 0 || device.size() >= sizeof(part.device))
    throw std::invalid_argument("a rank needs tensors, and a device key of at most " +
                                std::to_string(sizeof(part.device) - 1) + " bytes, not '" + device +
                                "'");
  if (!acquire(0))
    throw std::runtime_error(
        "the budget of " + device + " has no room for the first page (" +
        std::to_string(page_bytes_) + " bytes) beside its other members; free memory there, or " +
        "give it a larger capacity");
  try {
    map_page(0);
  } catch (...) {
    release_page(0);
    throw;
  }
  std::strncpy(part.device, device.c_str(), sizeof(part.device) - 1);
  part.row = row_;
  part.joined.store(1, std::memory_order_release);
  thread_ = std::thread([this] { serve(); });
}

Rank::~Rank() { close(); }

void Rank::serve() {
  auto& header = segment_->header();
  for (;;) {
    const std::uint32_t seen = header.doorbell.load();
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    try {
      serve_wish();
      const bool grew = serve_growth();
      const bool mapped = serve_ready();
      const bool retired = serve_retirement();
      if (!grew && !mapped && !retired) futex_wait(header.doorbell, seen, kIdleWait);
    } catch (const std::exception& error) {
      segment_->fail(rank_, error.what());
      return;
    }
  }
}

// Creates all that is asked for before it maps any: what others wait for is the promise.
bool Rank::serve_growth() {
  const std::uint32_t head = segment_->header().grow_head.load(std::memory_order_acquire);
  const bool any = grow_tail_ != head;
  bool refused = false;
  for (; grow_tail_ != head; ++grow_tail_) {
    const std::int32_t page = segment_->entry(grow_tail_);
    refused = refused || !acquire(page);
    {
      std::lock_guard lock(mutex_);
      if (refused)
        ++counters_.refused;
      else
        to_map_.push_back(page);
    }
    segment_->resolve(rank_, grow_tail_, refused ? Result::kRefused : Result::kOwned);
  }
  return any;
}

bool Rank::serve_ready() {
  std::int32_t page;
  {
    std::lock_guard lock(mutex_);
    if (to_map_.empty()) return false;
    page = to_map_.front();
    to_map_.pop_front();
    if (pages_[page].state != State::kOwned) return true;
    pages_[page].state = State::kMapping;
    ++counters_.mapped_ahead;
  }
  try {
    map_page(page);
  } catch (const vmm::DriverError&) {
    // The page is owned still: the step that needs it maps it, or says why it cannot.
  }
  return true;
}

bool Rank::serve_retirement() {
  Retirement next;
  {
    std::lock_guard lock(mutex_);
    if (to_retire_.empty()) return false;
    next = to_retire_.front();
  }
  for (std::int32_t page : next.pages)
    if (page != 0) release_page(page);
  {
    std::lock_guard lock(mutex_);
    to_retire_.pop_front();
    segment_->part(rank_).released_epoch.store(next.epoch, std::memory_order_release);
  }
  changed_.notify_all();
  segment_->ring_scheduler();
  return true;
}

void Rank::serve_wish() {
  budget_->set_idle(row_, segment_->header().idle_pages.load() * page_bytes_);
  budget_->set_want(row_, segment_->header().wish_pages.load() * page_bytes_);
}

Grant Rank::lease() {
  const Bytes created = budget_->created();
  const Bytes free = driver_->free_bytes();
  return budget_->lease(row_, page_bytes_, free, kLeaseDeadline, created);
}

bool Rank::acquire(std::int32_t page) {
  if (lease() != Grant::kGranted) return false;
  std::vector<vmm::Handle> handles;
  try {
    handles = create_handles();
  } catch (const vmm::DriverError&) {
    budget_->unlease(row_, page_bytes_);
    return false;
  }
  budget_->mark_created(row_, page_bytes_);
  {
    std::lock_guard lock(mutex_);
    pages_[page].state = State::kOwned;
    pages_[page].handles = std::move(handles);
    ++counters_.created;
    created_ += page_bytes_;
  }
  segment_->set_page_state(rank_, page, PageState::kOwned);
  publish_bytes();
  return true;
}

std::vector<vmm::Handle> Rank::create_handles() {
  std::vector<vmm::Handle> handles;
  try {
    for (const Extent& extent : extents_) handles.push_back(driver_->create(extent.bytes));
  } catch (...) {
    discard(handles);
    throw;
  }
  return handles;
}

void Rank::discard(std::vector<vmm::Handle>& handles) {
  for (vmm::Handle handle : handles) driver_->release(handle);
  handles.clear();
}

// The page is kMapping (or the constructor's). All extents, or none.
void Rank::map_page(std::int32_t page) {
  std::vector<vmm::Handle> handles;
  {
    std::lock_guard lock(mutex_);
    handles = pages_[page].handles;
  }
  std::size_t done = 0;
  try {
    for (; done < extents_.size(); ++done)
      extents_[done].arena->map(page * extents_[done].bytes, handles[done], true);
  } catch (...) {
    while (done-- > 0) extents_[done].arena->unmap(page * extents_[done].bytes);
    std::lock_guard lock(mutex_);
    pages_[page].state = State::kOwned;
    changed_.notify_all();
    throw;
  }
  {
    std::lock_guard lock(mutex_);
    pages_[page].state = State::kReady;
    mapped_ += page_bytes_;
  }
  changed_.notify_all();
  publish_bytes();
}

void Rank::make_ready(const std::vector<std::int32_t>& pages) {
  for (std::int32_t page : pages) {
    std::unique_lock lock(mutex_);
    if (page < 0 || static_cast<std::size_t>(page) >= pages_.size())
      throw std::logic_error("page " + std::to_string(page) + " of " +
                             std::to_string(pages_.size()));
    State& state = pages_[page].state;
    if (!changed_.wait_for(lock, kMapDeadline, [&] { return state != State::kMapping; }))
      throw std::runtime_error("rank " + std::to_string(rank_) +
                               "'s background thread did not map page " + std::to_string(page) +
                               " in time");
    if (state == State::kReady) continue;
    if (state != State::kOwned)
      throw std::logic_error("rank " + std::to_string(rank_) + " does not own page " +
                             std::to_string(page) + ", which a step is about to use (state " +
                             std::to_string(static_cast<int>(state)) + ")");
    state = State::kMapping;
    ++counters_.mapped_in_step;
    lock.unlock();
    map_page(page);
  }
}

void Rank::retire(const std::vector<std::int32_t>& pages, std::uint64_t epoch) {
  {
    std::lock_guard lock(mutex_);
    to_retire_.push_back({pages, epoch});
  }
  futex_bump(segment_->header().doorbell);
}

void Rank::release_page(std::int32_t page) {
  std::vector<vmm::Handle> handles;
  bool mapped;
  {
    std::lock_guard lock(mutex_);
    Page& mine = pages_[page];
    if (mine.state != State::kOwned && mine.state != State::kReady) return;
    mapped = mine.state == State::kReady;
    mine.state = State::kRetiring;
    handles = std::move(mine.handles);
    mine.handles.clear();
  }
  try {
    for (const Extent& extent : extents_)
      if (mapped) extent.arena->unmap(page * extent.bytes);
    discard(handles);
  } catch (const vmm::DriverError& error) {
    // What the driver did is unknown: the page is lost, and so is its lease, but nothing else.
    std::lock_guard lock(mutex_);
    pages_[page].state = State::kQuarantined;
    segment_->set_page_state(rank_, page, PageState::kQuarantined);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    pages_[page].state = State::kNone;
    ++counters_.released;
    created_ -= page_bytes_;
    if (mapped) mapped_ -= page_bytes_;
  }
  segment_->set_page_state(rank_, page, PageState::kVirtual);
  budget_->mark_released(row_, page_bytes_);
  publish_bytes();
}

bool Rank::drain(Milliseconds deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, deadline, [&] { return to_retire_.empty(); });
}

void Rank::publish_bytes() {
  std::lock_guard lock(mutex_);
  RankPart& part = segment_->part(rank_);
  part.mapped_bytes.store(mapped_, std::memory_order_relaxed);
  part.created_bytes.store(created_, std::memory_order_relaxed);
}

Bytes Rank::mapped_bytes() const {
  std::lock_guard lock(mutex_);
  return mapped_;
}

RankCounters Rank::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

void Rank::close() {
  if (getpid() != pid_) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = stopping_ = true;
  }
  futex_bump(segment_->header().doorbell);
  if (thread_.joinable()) thread_.join();
  if (give_back()) budget_->leave(row_);
}

// True if nothing is held any more. What would not go keeps its lease until the process is gone.
bool Rank::give_back() {
  Bytes released = 0;
  bool clean = true;
  for (Page& page : pages_) {
    if (page.state == State::kNone) continue;
    if (page.state == State::kQuarantined) {
      clean = false;
      continue;
    }
    try {
      if (page.state == State::kOwned) discard(page.handles);
      released += page_bytes_;
    } catch (const vmm::DriverError&) {
      clean = false;
    }
  }
  for (const Extent& extent : extents_) extent.arena->release();
  budget_->set_want(row_, 0);
  if (released > 0) budget_->mark_released(row_, released);
  mapped_ = created_ = 0;
  return clean;
}

}  // namespace kvcached::budget
