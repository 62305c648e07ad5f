#include "bind/bind.h"

namespace kvcached {

void bind_vmm(pybind11::module_&) {}

}  // namespace kvcached
