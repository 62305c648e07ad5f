#include "budget/budget_formula.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvcached::budget {
namespace {

Bytes floor_gap(const Holding& holding, Bytes extra = 0) {
  return sub(holding.floor, add(holding.lease, extra));
}

Bytes givable(const Holding& holding) {
  return std::min(holding.idle, sub(holding.lease, holding.floor));
}

// Bytes that must be found on the device beside what is created, and in the capacity beside
// nothing: the two sides of the formula. Claims are no part of the capacity.
struct Sides {
  Bytes in_capacity, on_device;
};

Sides committed(const Snapshot& all, const Sample& sample) {
  Bytes leased = 0, created = 0, claims = 0;
  for (const Holding& holding : all) {
    leased = add(leased, holding.lease);
    created = add(created, holding.created);
    claims = add(claims, holding.claim);
  }
  const Bytes promised = sub(leased, std::min(created, sample.created_before));
  return {add(leased, all.headroom), add(promised, add(claims, all.headroom))};
}

// Bytes beyond `committed` and `extra` that fit, were `returned` given back first.
Bytes room(const Snapshot& all, const Sample& sample, Bytes extra, Bytes returned) {
  const Sides sides = committed(all, sample);
  return std::min(sub(add(all.capacity, returned), add(sides.in_capacity, extra)),
                  sub(add(sample.device_free, returned), add(sides.on_device, extra)));
}

Bytes gaps_of_others(const Snapshot& all, int row) {
  Bytes gaps = 0;
  for (const Holding& holding : all) {
    if (holding.row != row) gaps = add(gaps, floor_gap(holding));
  }
  return gaps;
}

// Bytes that must come back before every other row's want could be granted. 0 without any want.
Bytes shortage(const Snapshot& all, int row, const Sample& sample) {
  Bytes wanted = 0, gaps = 0;
  for (const Holding& holding : all) {
    const Bytes want =
        holding.row == row ? 0 : std::min(holding.want, sub(holding.limit, holding.lease));
    wanted = add(wanted, want);
    gaps = add(gaps, floor_gap(holding, want));
  }
  if (wanted == 0) return 0;
  const Sides sides = committed(all, sample);
  const Bytes extra = add(wanted, gaps);
  return std::max(sub(add(sides.in_capacity, extra), all.capacity),
                  sub(add(sides.on_device, extra), sample.device_free));
}

long double part(const Holding& holding) {
  return static_cast<long double>(givable(holding)) / static_cast<long double>(holding.weight);
}

// Far above the error of the divisions, far below a byte: an exact part is not rounded up.
constexpr long double kRounding = 1.0L / 1024;

}  // namespace

const Holding& Snapshot::of(int row) const {
  for (const Holding& holding : *this) {
    if (holding.row == row) return holding;
  }
  throw RowGone("row " + std::to_string(row) + " is not taken, or was given back meanwhile.");
}

Snapshot snapshot(const Record& record) {
  Snapshot all;
  all.capacity = record.header.capacity.load();
  all.headroom = record.header.headroom.load();
  for (int row = 0; row < kRows; ++row) {
    const Row& from = record.rows[row];
    if (from.taken.load() == 0) continue;
    all.holdings[all.count++] = {row,
                                 from.limit.load(),
                                 from.floor.load(),
                                 from.claim.load(),
                                 from.lease.load(),
                                 from.created.load(),
                                 from.want.load(),
                                 from.idle.load(),
                                 from.weight.load()};
  }
  return all;
}

Bytes sum_created(const Record& record) {
  Bytes sum = 0;
  for (const Row& row : record.rows) {
    if (row.taken.load() != 0) sum = add(sum, row.created.load());
  }
  return sum;
}

Bytes grantable(const Snapshot& all, int row, const Sample& sample) {
  const Holding& own = all.of(row);
  return std::min(sub(own.limit, own.lease), room(all, sample, gaps_of_others(all, row), 0));
}

Bytes reachable(const Snapshot& all, int row, const Sample& sample) {
  const Holding& own = all.of(row);
  Bytes returned = 0;
  for (const Holding& holding : all) {
    if (holding.row != row) returned = add(returned, givable(holding));
  }
  return std::min(sub(own.limit, own.lease), room(all, sample, gaps_of_others(all, row), returned));
}

// Fills by givable bytes over weight: who can give less than its part gives all it can, and what is
// left of the need is shared again among the rest.
Bytes reclaim_target(const Snapshot& all, int row, const Sample& sample) {
  const Holding& own = all.of(row);
  auto need = static_cast<long double>(shortage(all, row, sample));
  if (need <= 0 || givable(own) == 0) return 0;
  std::vector<const Holding*> givers;
  for (const Holding& holding : all) {
    if (givable(holding) > 0) givers.push_back(&holding);
  }
  for (;;) {
    long double parts = 0;
    for (const Holding* giver : givers) parts += part(*giver);
    const auto spent = std::partition(givers.begin(), givers.end(), [&](const Holding* giver) {
      return need * part(*giver) < static_cast<long double>(givable(*giver)) * parts;
    });
    if (spent == givers.end()) {
      return static_cast<Bytes>(std::ceil(need * part(own) / parts - kRounding));
    }
    for (auto giver = spent; giver != givers.end(); ++giver) {
      if ((*giver)->row == row) return givable(own);
      need -= static_cast<long double>(givable(**giver));
    }
    givers.erase(spent, givers.end());
  }
}

Bytes members_total(const Snapshot& all, const Sample& sample) {
  Bytes leased = 0;
  for (const Holding& holding : all) leased = add(leased, holding.lease);
  return add(leased, room(all, sample, 0, 0));
}

Bytes guaranteed(const Snapshot& all, int row) {
  Bytes sum = all.headroom;
  for (const Holding& holding : all) {
    if (holding.row != row) sum = add(sum, holding.floor);
  }
  return sum;
}

}  // namespace kvcached::budget
