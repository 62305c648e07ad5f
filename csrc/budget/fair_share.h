// How a budget that is too small for all is split: weighted max-min fairness.
#pragma once

#include "budget/budget_formula.h"

namespace kvcached::budget {

// Bytes that requests of `row` may use while others lack memory; `row`'s limit while nobody does.
//
// Every other member demands what its requests use and want, at least its floor, at most its limit;
// `row` all up to its limit, for this is asked before it wants more. The members' memory is filled
// up by weight: a member gets level x weight, at least its floor and at most its demand, with the
// one level at which all of it is spent. So who demands less than its part gets all it demands, and
// the others share the rest (Bertsekas, Gallager, "Data Networks", 2nd ed., section 6.5.2, with
// weights and floors).
Bytes fair_share(const Snapshot& all, int row, const Sample& sample);

}  // namespace kvcached::budget
