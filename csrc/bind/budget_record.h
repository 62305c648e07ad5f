// Adds the record's names to the module: Budget, Grant, RowInfo, BudgetError, CapacityConflict,
// RowGone.
#pragma once

#include <pybind11/pybind11.h>

namespace kvcached {

void bind_budget_record(pybind11::module_& m);

}  // namespace kvcached
