// Where pages of equal size lie over granules: arithmetic only.
//
// Page p is the bytes [p * page_bytes, (p + 1) * page_bytes). A span is a longest run of whole
// granules that the same pages touch. A page has one to three: perhaps a granule that it shares
// with pages before it, what it has alone, perhaps a granule that it shares with pages behind it.
// Where page_bytes is whole granules a page is one span.
#pragma once

#include <array>
#include <cstddef>

#include "vmm/driver.h"

namespace kvcached::vmm {

struct Span {
  Bytes offset = 0, size = 0;
};

struct Spans {
  std::array<Span, 3> at;
  std::size_t count = 0;
  const Span* begin() const { return at.data(); }
  const Span* end() const { return at.data() + count; }
};

class PageSpans {
 public:
  // Both positive; `granule` is a power of two.
  PageSpans(Bytes page_bytes, Bytes granule) : page_bytes_(page_bytes), granule_(granule) {}

  Bytes page_bytes() const { return page_bytes_; }
  // Bytes of all spans of one page, at most: a page can begin up to granule - gcd(page_bytes,
  // granule) bytes into a granule.
  Bytes most_bytes() const;
  Spans of(std::size_t page) const;
  // The part of a span that is the page's own.
  Span own(std::size_t page, const Span& span) const;

 private:
  const Bytes page_bytes_, granule_;
};

}  // namespace kvcached::vmm
