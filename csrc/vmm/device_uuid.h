// A device's UUID as tools print it: 8-4-4-4-12 hexadecimal digits.
#pragma once

#include <string>

namespace kvcached::vmm {

inline std::string uuid_text(const unsigned char (&bytes)[16]) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += {kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]};
  }
  return out;
}

}  // namespace kvcached::vmm
