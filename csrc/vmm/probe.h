// Whether memory can be read, found out without a fault: for tests that prove what is inaccessible.
#pragma once

#include <cstdint>

namespace kvcached::vmm {

// How many of the bytes [address, address + size) of this process are readable, told page by page
// (one byte of each is copied by the kernel, which answers EFAULT instead of a signal). Host
// addresses only. A readable page is read, so it may be brought into memory by this.
std::uint64_t readable_bytes(std::uintptr_t address, std::uint64_t size);

}  // namespace kvcached::vmm
