#include "budget/fair_share.h"

#include <algorithm>

namespace kvcached::budget {
namespace {

using Real = long double;

// Halvings that take a level from the largest possible below a byte for any weight.
constexpr int kHalvings = 90;

Bytes demand(const Holding& holding) {
  const Bytes needed = add(sub(holding.lease, holding.idle), holding.want);
  return std::min(holding.limit, std::max(holding.floor, needed));
}

struct Asker {
  const Snapshot& all;
  int row;

  Real share_at(const Holding& holding, Real level) const {
    const Real most = static_cast<Real>(holding.row == row ? holding.limit : demand(holding));
    const Real least = std::min(most, static_cast<Real>(holding.floor));
    return std::clamp(level * static_cast<Real>(holding.weight), least, most);
  }
  Real sum_at(Real level) const {
    Real sum = 0;
    for (const Holding& holding : all) sum += share_at(holding, level);
    return sum;
  }
  bool others_want() const {
    return std::any_of(all.begin(), all.end(), [this](const Holding& holding) {
      return holding.row != row && holding.want > 0;
    });
  }
};

}  // namespace

Bytes fair_share(const Snapshot& all, int row, const Sample& sample) {
  const Holding& own = all.of(row);
  const Asker asker{all, row};
  if (!asker.others_want()) return own.limit;
  const Real total = static_cast<Real>(members_total(all, sample));
  Real low = 0, high = total;  // a weight is at least 1
  for (int i = 0; i < kHalvings; ++i) {
    const Real level = (low + high) / 2;
    (asker.sum_at(level) <= total ? low : high) = level;
  }
  return static_cast<Bytes>(asker.share_at(own, low) + 1.0L / 1024);
}

}  // namespace kvcached::budget
