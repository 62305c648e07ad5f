#include "bind/bind.h"
#include "bind/budget_postmortem.h"
#include "bind/budget_record.h"
#include "bind/budget_segment.h"

namespace kvcached {

void bind_budget(pybind11::module_& m) {
  bind_budget_record(m);
  bind_budget_segment(m);
  bind_budget_postmortem(m);
}

}  // namespace kvcached
