// Error texts: any number of values, written one after the other.
#pragma once

#include <sstream>
#include <string>

namespace kvcached::vmm {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace kvcached::vmm
