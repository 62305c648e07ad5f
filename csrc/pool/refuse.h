// How the ledger refuses: std::invalid_argument that names the call.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvcached::pool {

[[noreturn]] inline void refuse(const char* call, const std::string& why) {
  throw std::invalid_argument(std::string(call) + ": " + why);
}

inline void check_count(const char* call, const char* what, std::int64_t value) {
  if (value < 0)
    refuse(call, std::string(what) + " is " + std::to_string(value) + ", must be >= 0");
}

}  // namespace kvcached::pool
