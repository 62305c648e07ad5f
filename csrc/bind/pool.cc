#include "bind/bind.h"

namespace kvcached {

void bind_pool(pybind11::module_&) {}

}  // namespace kvcached
