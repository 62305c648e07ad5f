#include "budget/segment.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "budget/futex.h"
#include "budget/segment_layout.h"

namespace kvcached::budget {
namespace {

// Whether `done` lies behind `sequence`, also where the 32 bits wrap.
bool passed(std::uint32_t done, std::uint32_t sequence) {
  return static_cast<std::int32_t>(done - sequence) > 0;
}

}  // namespace

Segment::Segment(std::string path, void* base, std::size_t size)
    : path_(std::move(path)),
      base_(base),
      size_(size),
      header_(static_cast<SegmentHeader*>(base)),
      head_(header_->grow_head.load()),
      tail_(head_) {}

std::atomic<std::uint32_t>* Segment::ring() const {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(static_cast<char*>(base_) + ring_offset());
}

RankPart& Segment::part(std::uint32_t rank) const {
  if (rank >= header_->num_ranks)
    throw std::out_of_range("rank " + std::to_string(rank) + " of " +
                            std::to_string(header_->num_ranks));
  return *reinterpret_cast<RankPart*>(static_cast<char*>(base_) + parts_offset(header_->ring_size) +
                                      rank * part_stride(header_->ring_size, header_->num_pages));
}

std::atomic<std::uint8_t>* Segment::results(std::uint32_t rank) const {
  return reinterpret_cast<std::atomic<std::uint8_t>*>(reinterpret_cast<char*>(&part(rank)) +
                                                      aligned(sizeof(RankPart)));
}

std::atomic<std::uint8_t>* Segment::states(std::uint32_t rank) const {
  return results(rank) + aligned(header_->ring_size);
}

RecorderRing& Segment::recorder(std::uint32_t writer) const {
  const std::size_t first =
      recorders_offset(header_->num_pages, header_->num_ranks, header_->ring_size);
  return *reinterpret_cast<RecorderRing*>(static_cast<char*>(base_) + first +
                                          writer * sizeof(RecorderRing));
}

void Segment::check_process() const {
  if (process_.is_here()) return;
  throw std::logic_error(path_ + ": opened by process " + std::to_string(process_.pid()) +
                         ", used in its child " + std::to_string(getpid()) +
                         ": open it again there");
}

void Segment::request(const std::vector<std::int32_t>& pages) {
  check_process();
  for (std::int32_t page : pages) check_page(page);
  if (outstanding() + pages.size() > header_->ring_size)
    throw std::logic_error(std::to_string(pages.size()) + " entries on top of " +
                           std::to_string(outstanding()) + " unresolved do not fit a ring of " +
                           std::to_string(header_->ring_size) + ": poll() before asking for more");
  if (pages.empty()) return;
  const std::uint32_t mask = header_->ring_size - 1;
  for (std::int32_t page : pages) {
    for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
      results(r)[head_ & mask].store(static_cast<std::uint8_t>(Result::kPending));
    ring()[head_++ & mask].store(static_cast<std::uint32_t>(page), std::memory_order_relaxed);
  }
  record(pages, TracedState::kVirtual, TracedState::kPreparing, epoch_);
  header_->grow_head.store(head_, std::memory_order_release);
  futex_bump(header_->doorbell);
}

Resolved Segment::poll() {
  check_process();
  Resolved resolved;
  std::uint32_t done = head_;
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r) {
    std::uint32_t theirs = part(r).grow_done.load(std::memory_order_acquire);
    if (passed(done, theirs)) done = theirs;
  }
  const std::uint32_t mask = header_->ring_size - 1;
  for (; tail_ != done; ++tail_) {
    const auto page = static_cast<std::int32_t>(ring()[tail_ & mask].load());
    std::uint32_t owned = 0;
    for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
      owned += results(r)[tail_ & mask].load() == static_cast<std::uint8_t>(Result::kOwned);
    auto& list = owned == header_->num_ranks           ? resolved.owned
                 : owned == 0 && !is_quarantined(page) ? resolved.refused
                                                       : resolved.partial;
    list.push_back(page);
  }
  record(resolved.owned, TracedState::kPreparing, TracedState::kOwned, epoch_);
  record(resolved.refused, TracedState::kPreparing, TracedState::kVirtual, epoch_);
  return resolved;
}

std::uint64_t Segment::released_epoch() const {
  std::uint64_t least = UINT64_MAX;
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r) {
    std::uint64_t theirs = part(r).released_epoch.load(std::memory_order_acquire);
    least = theirs < least ? theirs : least;
  }
  return least;
}

void Segment::check_page(std::int32_t page) const {
  if (page < 0 || static_cast<std::uint32_t>(page) >= header_->num_pages)
    throw std::out_of_range("there is no page " + std::to_string(page) + " in " + path_ +
                            ": pages are 0 to " + std::to_string(header_->num_pages - 1));
}

bool Segment::is_quarantined(std::int32_t page) const {
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
    if (page_state(r, page) == PageState::kQuarantined) return true;
  return false;
}

PageState Segment::page_state(std::uint32_t rank, std::int32_t page) const {
  check_page(page);
  return static_cast<PageState>(states(rank)[page].load(std::memory_order_acquire));
}

void Segment::record(const std::vector<std::int32_t>& pages, TracedState from, TracedState to,
                     std::uint64_t epoch) {
  if (pages.empty()) return;
  check_process();
  epoch_ = epoch;
  recorder(0).write(kSchedulerHalf, pages.data(), pages.size(), from, to, epoch);
}

void Segment::set_wish(std::uint32_t pages) {
  check_process();
  if (header_->wish_pages.exchange(pages) != pages) futex_bump(header_->doorbell);
}

void Segment::set_idle(std::uint32_t pages) {
  check_process();
  header_->idle_pages.store(pages);
}

void Segment::ring_ranks() {
  check_process();
  futex_bump(header_->doorbell);
}

Sample Segment::sample(std::uint32_t rank) const {
  const RankPart& theirs = part(rank);
  if (theirs.sampled.load(std::memory_order_acquire) == 0) return {};
  return {theirs.device_free.load(), theirs.created_before.load()};
}

std::string Segment::failure() const {
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
    if (std::string text = failure(r); !text.empty())
      return "rank " + std::to_string(r) + ": " + text;
  return {};
}

std::string Segment::failure(std::uint32_t rank) const {
  const RankPart& theirs = part(rank);
  if (theirs.failed.load(std::memory_order_acquire) == 0) return {};
  const std::string text(theirs.failure, strnlen(theirs.failure, kFailureText));
  return text.empty() ? "failed, and gave no reason" : text;
}

Trace Segment::trace(std::size_t most) const {
  Trace all;
  for (std::uint32_t writer = 0; writer <= header_->num_ranks; ++writer) {
    const Trace one = recorder(writer).read(most);
    all.torn += one.torn;
    all.transitions.insert(all.transitions.end(), one.transitions.begin(), one.transitions.end());
  }
  std::stable_sort(all.transitions.begin(), all.transitions.end(),
                   [](const Transition& a, const Transition& b) { return a.time_ns < b.time_ns; });
  return all;
}

std::uint32_t Segment::progress() const { return header_->progress.load(); }

std::uint32_t Segment::wait_progress(std::uint32_t seen, Milliseconds deadline) const {
  if (header_->progress.load() == seen) futex_wait(header_->progress, seen, deadline);
  return header_->progress.load();
}

std::int32_t Segment::entry(std::uint32_t sequence) const {
  return static_cast<std::int32_t>(ring()[sequence & (header_->ring_size - 1)].load());
}

void Segment::resolve(std::uint32_t rank, std::uint32_t sequence, Result result) {
  results(rank)[sequence & (header_->ring_size - 1)].store(static_cast<std::uint8_t>(result));
  part(rank).grow_done.store(sequence + 1, std::memory_order_release);
}

void Segment::set_page_state(std::uint32_t rank, std::int32_t page, PageState state) {
  states(rank)[page].store(static_cast<std::uint8_t>(state), std::memory_order_release);
}

void Segment::set_sample(std::uint32_t rank, const Sample& sample) {
  RankPart& mine = part(rank);
  mine.created_before.store(sample.created_before);
  mine.device_free.store(sample.device_free);
  mine.sampled.store(1, std::memory_order_release);
}

void Segment::ring_scheduler() { futex_bump(header_->progress); }

void Segment::record(std::uint32_t rank, std::int32_t page, TracedState from, TracedState to,
                     std::uint64_t epoch) {
  recorder(1 + rank).write(static_cast<std::uint16_t>(rank), &page, 1, from, to, epoch);
}

void Segment::fail(std::uint32_t rank, const std::string& text) {
  RankPart& mine = part(rank);
  if (mine.failed.load() != 0) return;
  std::strncpy(mine.failure, text.c_str(), kFailureText - 1);
  mine.failed.store(1, std::memory_order_release);
  ring_scheduler();
}

}  // namespace kvcached::budget
