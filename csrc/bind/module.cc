#include "bind/bind.h"

PYBIND11_MODULE(_native, m) {
  m.doc() = "kvcached_core's native half: drivers and arenas, the ledger, the budget.";
  kvcached::bind_vmm(m);
  kvcached::bind_pool(m);
  kvcached::bind_block_queue(m);
  kvcached::bind_budget(m);
}
