#include "vmm/page_spans.h"

#include <algorithm>
#include <numeric>

namespace kvcached::vmm {

Bytes PageSpans::most_bytes() const {
  const Bytes start = granule_ - std::gcd(page_bytes_, granule_);
  return (start + page_bytes_ + granule_ - 1) / granule_ * granule_;
}

Spans PageSpans::of(std::size_t page) const {
  const Bytes begin = page * page_bytes_, end = begin + page_bytes_;
  const Bytes first = begin / granule_ * granule_;
  const Bytes last = (end + granule_ - 1) / granule_ * granule_;
  const bool head = begin != first, tail = end != last;
  Spans spans;
  const auto add = [&](Bytes from, Bytes to) {
    if (from < to) spans.at[spans.count++] = {from, to - from};
  };
  if (last - first == granule_) {
    add(first, last);
    return spans;
  }
  const Bytes body = head ? first + granule_ : first;
  const Bytes body_end = tail ? last - granule_ : last;
  add(first, body);
  add(body, body_end);
  add(body_end, last);
  return spans;
}

Span PageSpans::own(std::size_t page, const Span& span) const {
  const Bytes begin = std::max(page * page_bytes_, span.offset);
  const Bytes end = std::min((page + 1) * page_bytes_, span.offset + span.size);
  return {begin, end - begin};
}

}  // namespace kvcached::vmm
