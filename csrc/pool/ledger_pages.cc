// The ledger's edges of pages.
#include <algorithm>
#include <string>

#include "pool/ledger.h"
#include "pool/refuse.h"

namespace kvcached::pool {

Ids Ledger::plan_growth(std::int64_t max_pages) {
  check_count("plan_growth", "max_pages", max_pages);
  const auto n = std::min(max_pages, std::int64_t{pages(PageState::kVirtual)});
  Ids out;
  out.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<Id>(virtual_.first()));
    set_page_state(out.back(), PageState::kVirtual, PageState::kPreparing);
  }
  return out;
}

Ids Ledger::retire_empty(std::int64_t max_pages) {
  check_count("retire_empty", "max_pages", max_pages);
  const auto n = std::min(max_pages, std::int64_t{empty_pages_});
  Ids out;
  out.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<Id>(empty_.last()));
    set_page_state(out.back(), PageState::kOwned, PageState::kRetiring);
  }
  return out;
}

void Ledger::grown(const Ids& pages) {
  move_pages("grown", pages, {PageState::kPreparing}, PageState::kOwned);
}

void Ledger::growth_failed(const Ids& pages) {
  move_pages("growth_failed", pages, {PageState::kPreparing}, PageState::kVirtual);
}

void Ledger::released(const Ids& pages) {
  move_pages("released", pages, {PageState::kRetiring}, PageState::kVirtual);
}

void Ledger::kept(const Ids& pages) {
  move_pages("kept", pages, {PageState::kRetiring}, PageState::kOwned);
}

void Ledger::quarantine(const Ids& pages) {
  move_pages("quarantine", pages, {PageState::kPreparing, PageState::kRetiring},
             PageState::kQuarantined);
}

void Ledger::move_pages(const char* call, const Ids& pages, std::initializer_list<PageState> from,
                        PageState to) {
  Ids sorted = pages;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse(call, "page " + std::to_string(*twice) + " is named twice");
  for (const Id page : pages) {
    check_page(call, page);
    const PageState found = page_state_[at(page)];
    if (std::find(from.begin(), from.end(), found) != from.end()) continue;
    std::string allowed;
    for (const PageState s : from)
      allowed += (allowed.empty() ? "" : " or ") + std::string(name(s));
    refuse(call, "page " + std::to_string(page) + " is " + name(found) + ", must be " + allowed);
  }
  for (const Id page : pages) set_page_state(page, page_state_[at(page)], to);
}

void Ledger::set_page_state(Id page, PageState from, PageState to) {
  if (from == PageState::kOwned) {
    unindex(page);
    first_used_.clear(page);
    was_told_[at(page)] = 0;
  }
  if (from == PageState::kVirtual) virtual_.clear(page);
  page_state_[at(page)] = to;
  --pages_in_[static_cast<std::size_t>(from)];
  ++pages_in_[static_cast<std::size_t>(to)];
  if (to == PageState::kVirtual) virtual_.set(page);
  if (to == PageState::kOwned) index(page);
}

Ids Ledger::take_first_used() {
  Ids out;
  for (auto p = first_used_.first(); p >= 0; p = first_used_.next(p + 1)) {
    out.push_back(static_cast<Id>(p));
  }
  for (const Id page : out) {
    first_used_.clear(page);
    was_told_[at(page)] = 1;
  }
  return out;
}

}  // namespace kvcached::pool
