#include "bind/bind.h"

namespace kvcached {

void bind_budget(pybind11::module_&) {}

}  // namespace kvcached
