// gguf_text.h -- makes text from a file safe to print in a message.
#pragma once

#include <string>
#include <string_view>

namespace braid {

// At most 80 bytes, quoted. Only printable ASCII is kept, so a file cannot control the terminal.
inline std::string quoted(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (text.size() > kMost) out += "...";
  out += '"';
  return out;
}

}  // namespace braid
