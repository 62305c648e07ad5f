// One function a layer, each defined beside the others in csrc/bind/: they add that layer's
// public names to the extension module.
#pragma once

#include <pybind11/pybind11.h>

namespace kvcached {

void bind_vmm(pybind11::module_& m);
void bind_pool(pybind11::module_& m);
void bind_block_queue(pybind11::module_& m);
void bind_budget(pybind11::module_& m);

}  // namespace kvcached
