// Telling a forked child from its parent without a system call.
#pragma once

namespace kvcached::budget {

// Grows by one in each child of a fork(), seen from the first call on.
unsigned fork_count();

}  // namespace kvcached::budget
