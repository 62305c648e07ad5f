// Addresses as numbers.
#pragma once

#include <cstdint>
#include <string>

#include "vmm/text.h"

namespace kvcached::vmm {

using Address = std::uintptr_t;

inline void* pointer(Address address) { return reinterpret_cast<void*>(address); }
inline Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
inline std::string hex(Address address) { return text("0x", std::hex, address); }

}  // namespace kvcached::vmm
