// hex.h -- hexadecimal digits of escapes and digests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

// The number that `digits` digits (at most 8, of either case) at `at` spell; empty if they do not.
inline std::optional<uint32_t> hex_number(std::string_view text, size_t at, size_t digits) {
  if (text.size() < digits || at > text.size() - digits) return std::nullopt;
  uint32_t value = 0;
  for (const char c : text.substr(at, digits)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return value;
}

// Appends the last `digits` digits of a number, in lower case.
inline void append_hex(std::string& out, uint32_t number, int digits) {
  while (digits-- > 0) out += "0123456789abcdef"[number >> (4 * digits) & 15];
}

}  // namespace braid
