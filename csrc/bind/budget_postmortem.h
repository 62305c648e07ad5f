#pragma once

#include "bind/bind.h"

namespace kvcached {

void bind_budget_postmortem(pybind11::module_& m);

}  // namespace kvcached
