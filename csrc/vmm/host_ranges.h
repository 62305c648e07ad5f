// Ranges of this process's addresses: reserved, laid over a file, hidden again. System calls and
// their undoing, no tables. All return 0 or errno; after an error the range is as before.
#pragma once

#include <cstdint>

#include "vmm/driver.h"

namespace kvcached::vmm {

Bytes machine_page_size();

// A range without access or memory on a multiple of `alignment`, a power of two from the page size
// up.
int reserve_range(Bytes size, Bytes alignment, std::uintptr_t& base);
int unreserve_range(std::uintptr_t base, Bytes size);
// Lays part of a file over a reserved range, shared, without access, not inherited by fork.
int lay_file(std::uintptr_t address, Bytes size, int fd, Bytes offset);
int set_range_access(std::uintptr_t address, Bytes size, bool accessible);
// Makes the range inaccessible and reserved again.
int hide_range(std::uintptr_t address, Bytes size);

}  // namespace kvcached::vmm
