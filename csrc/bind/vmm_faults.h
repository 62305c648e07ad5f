#pragma once

#include <pybind11/pybind11.h>

namespace kvcached {

void bind_vmm_faults(pybind11::module_& m);

}  // namespace kvcached
