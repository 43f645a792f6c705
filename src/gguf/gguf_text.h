// gguf_text.h -- text from a file, made safe to print in a message.
#pragma once

#include <string>
#include <string_view>

namespace braid {

// At most 80 bytes of `text` in double quotes; what is not printable ASCII becomes '?', so that a hostile
// file cannot send control sequences to the terminal.
inline std::string quoted(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (text.size() > kMost) out += "...";
  out += '"';
  return out;
}

}  // namespace braid
