// The arithmetic of a grant and of a reclaim: pure functions of a snapshot. Sums saturate.
#pragma once

#include <array>

#include "budget/record_layout.h"

namespace kvcached::budget {

struct Holding {
  int row;
  Bytes limit, floor, claim, lease, created, want, idle, weight;
};

struct Snapshot {
  Bytes capacity = 0, headroom = 0;
  int count = 0;
  std::array<Holding, kRows> holdings;  // the taken rows, in order

  const Holding* begin() const { return holdings.data(); }
  const Holding* end() const { return holdings.data() + count; }
  const Holding& of(int row) const;
};

Snapshot snapshot(const Record& record);

Bytes sum_created(const Record& record);

// Most bytes that a lease of `row` may have now.
Bytes grantable(const Snapshot& all, int row, const Sample& sample);
// As grantable, were every other holder's idle bytes above its floor given back.
Bytes reachable(const Snapshot& all, int row, const Sample& sample);
// `row`'s part of what the others want and cannot have now.
Bytes reclaim_target(const Snapshot& all, int row, const Sample& sample);

// What all rows hold and what they could still be granted, floors aside.
Bytes members_total(const Snapshot& all, const Sample& sample);

// floors + headroom, without the floor of `row` (-1: all floors).
Bytes guaranteed(const Snapshot& all, int row);

// a + b, or the largest number; a - b, or 0.
constexpr Bytes add(Bytes a, Bytes b) { return a + b < a ? kNotSampled : a + b; }
constexpr Bytes sub(Bytes a, Bytes b) { return a > b ? a - b : 0; }

}  // namespace kvcached::budget
