#include "vmm/granules.h"

#include <chrono>

#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

// A mapping takes microseconds; past this the driver is stuck.
constexpr std::chrono::seconds kMappingDeadline{30};

constexpr std::uint8_t bit(std::size_t index) { return static_cast<std::uint8_t>(1U << index); }

}  // namespace

Granules::Granules(std::shared_ptr<Arena> arena, Bytes page_bytes, std::size_t num_pages)
    : arena_(std::move(arena)),
      spans_(page_bytes, arena_->driver().granularity()),
      pages_(num_pages) {
  if (page_bytes == 0 || arena_->size() / page_bytes < num_pages) {
    throw InvalidArgument(
        text("an extent of ", page_bytes, " bytes a page in an arena of ", arena_->size(),
             " bytes: allowed is at least one byte, and room for ", num_pages, " pages"));
  }
}

void Granules::check_page(std::size_t page) const {
  if (page < pages_.size()) return;
  throw InvalidArgument(text("there is no page ", page, ": pages are 0 to ", pages_.size() - 1));
}

bool Granules::holds(std::size_t page) const {
  check_page(page);
  return pages_[page].held != 0;
}

Granules::Memory& Granules::memory_at(const Span& span) {
  const std::lock_guard lock(mutex_);
  return memory_.at(span.offset);
}

// The span's memory, made if there is none.
Granules::Memory& Granules::obtain(const Span& span) {
  std::unique_lock lock(mutex_);
  Memory& memory = memory_[span.offset];
  lock.unlock();
  if (memory.place != Place::kNowhere) return memory;
  try {
    memory.handle = arena_->driver().create(span.size);
  } catch (...) {
    forget(span);
    throw;
  }
  memory.place = Place::kHeld;
  created_ += span.size;
  return memory;
}

void Granules::forget(const Span& span) {
  const std::lock_guard lock(mutex_);
  memory_.erase(span.offset);
}

void Granules::hold(std::size_t page, std::size_t index, const Span& span) {
  Memory& memory = obtain(span);
  ++memory.pages;
  pages_[page].held |= bit(index);
  if (memory.written) pages_[page].stale |= bit(index);
  if (memory.place == Place::kLost) {
    throw Quarantined(text("page ", page, " touches ", span.size, " bytes at offset ", span.offset,
                           " that were lost to a driver error before"));
  }
}

void Granules::create(std::size_t page) {
  if (holds(page)) throw InvalidArgument(text("create: page ", page, " holds memory already"));
  const Spans spans = spans_.of(page);
  try {
    for (std::size_t i = 0; i < spans.count; ++i) hold(page, i, spans.at[i]);
  } catch (...) {
    release(page);
    throw;
  }
}

void Granules::tie(std::size_t page, const Span& span) {
  Memory& memory = memory_at(span);
  const std::unique_lock mapping(memory.mapping, kMappingDeadline);
  if (!mapping) {
    throw DriverError(text("map: page ", page, " waited ", kMappingDeadline.count(),
                           " s for a neighbour's mapping of the granule at offset ", span.offset));
  }
  if (memory.place == Place::kMapped) return;
  if (memory.place == Place::kLost) {
    throw Quarantined(text("page ", page, " was lost to a driver error before"));
  }
  try {
    arena_->map(span.offset, memory.handle, !memory.written);
  } catch (const Quarantined&) {
    memory.place = Place::kLost;
    throw;
  }
  memory.written = true;
  memory.place = Place::kMapped;
  mapped_ += span.size;
}

void Granules::map(std::size_t page) {
  check_page(page);
  const Spans spans = spans_.of(page);
  Page& mine = pages_[page];
  if (mine.held != bit(spans.count) - 1) {
    throw InvalidArgument(text("map: page ", page, " does not hold all of its memory"));
  }
  for (std::size_t i = 0; i < spans.count; ++i) {
    tie(page, spans.at[i]);
    if ((mine.stale & bit(i)) == 0) continue;
    const Span own = spans_.own(page, spans.at[i]);
    arena_->zero(own.offset, own.size);
    mine.stale &= static_cast<std::uint8_t>(~bit(i));
  }
}

void Granules::untie(const Span& span, Memory& memory) {
  if (memory.place != Place::kMapped) return;
  arena_->unmap(span.offset);
  memory.place = Place::kHeld;
  mapped_ -= span.size;
}

bool Granules::unmap(std::size_t page) {
  check_page(page);
  const Spans spans = spans_.of(page);
  Page& mine = pages_[page];
  bool all = true;
  for (std::size_t i = 0; i < spans.count; ++i) {
    if ((mine.held & bit(i)) == 0) continue;
    Memory& memory = memory_at(spans.at[i]);
    if (memory.pages > 1) {
      mine.stale |= bit(i);
      continue;
    }
    try {
      untie(spans.at[i], memory);
    } catch (const DriverError&) {
      mine.stale |= bit(i);
      all = false;
    }
  }
  return all;
}

void Granules::let_go(const Span& span, Memory& memory) {
  untie(span, memory);
  arena_->driver().release(memory.handle);
  created_ -= span.size;
  forget(span);
}

bool Granules::release(std::size_t page) {
  check_page(page);
  const Spans spans = spans_.of(page);
  Page& mine = pages_[page];
  for (std::size_t i = 0; i < spans.count; ++i) {
    if ((mine.held & bit(i)) == 0) continue;
    Memory& memory = memory_at(spans.at[i]);
    if (memory.place == Place::kLost) continue;
    try {
      if (memory.pages == 1) {
        let_go(spans.at[i], memory);
      } else {
        --memory.pages;
      }
      mine.held &= static_cast<std::uint8_t>(~bit(i));
    } catch (const DriverError&) {
      // It stays where the driver left it, and the page holds it: false says so.
    }
  }
  mine.stale &= mine.held;
  return mine.held == 0;
}

// The arena tries once more to give back what release() left mapped or lost.
bool Granules::close() {
  for (std::size_t page = 0; page < pages_.size(); ++page) release(page);
  arena_->release();
  mapped_ = 0;
  Bytes kept = arena_->quarantined_bytes();
  const bool all_gone = kept == 0;
  const std::lock_guard lock(mutex_);
  for (auto next = memory_.begin(); next != memory_.end();) {
    auto& [offset, memory] = *next++;
    if (memory.place == Place::kHeld) {
      kept += memory.handle.size;
    } else {
      memory.place = Place::kLost;
      if (all_gone) memory_.erase(offset);
    }
  }
  created_ = kept;
  for (std::size_t page = 0; all_gone && page < pages_.size(); ++page) drop_gone(page);
  return kept == 0;
}

void Granules::drop_gone(std::size_t page) {
  const Spans spans = spans_.of(page);
  for (std::size_t i = 0; i < spans.count; ++i) {
    if (memory_.count(spans.at[i].offset) == 0)
      pages_[page].held &= static_cast<std::uint8_t>(~bit(i));
  }
}

}  // namespace kvcached::vmm
