// jinja_text.cpp -- see jinja_text.h.
#include "text/jinja/jinja_text.h"

#include <string.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "base/hex.h"
#include "text/unicode.h"

namespace braid::jinja {

size_t char_bytes(std::string_view text, size_t at) {
  size_t bytes;
  decode_char(text, at, &bytes);
  return bytes;
}

uint32_t decode_char(std::string_view text, size_t at, size_t* bytes) {
  *bytes = 1;
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return first;
  const Utf8Step step = utf8_step(text.substr(at));
  if (step.kind != Utf8Kind::complete) return kReplacementCharacter;
  *bytes = static_cast<size_t>(step.length_bytes);
  return step.code_point;
}

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += char_bytes(text, at)) ++count;
  return count;
}

size_t byte_of_char(std::string_view text, size_t index, size_t from_byte) {
  size_t at = from_byte;
  while (index > 0 && at < text.size()) {
    at += char_bytes(text, at);
    --index;
  }
  return at;
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(uint32_t c) {
  if (c < 0x80)
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  if (is_space(c) || c == 0xD7 || c == 0xF7 || c == 0xFFFD) return false;
  if (c < 0xC0) return c == 0xAA || c == 0xB5 || c == 0xBA || c == 0xB2 || c == 0xB3 || c == 0xB9;
  return !(c >= 0x2000 && c <= 0x206F) && !(c >= 0x2190 && c <= 0x2BFF) &&
         !(c >= 0x3000 && c <= 0x3004) && !(c >= 0x3008 && c <= 0x3020) &&
         !(c >= 0xFF00 && c <= 0xFF0F) && !(c >= 0x1F000 && c <= 0x1FAFF);
}

uint32_t to_upper(uint32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  if (c == 0xFF) return 0x178;
  if (c == 0xB5) return 0x39C;
  if (c >= 0xE0 && c <= 0xFE && c != 0xF7) return c - 32;
  if ((c >= 0x100 && c <= 0x137 && c != 0x131) || (c >= 0x14A && c <= 0x177)) return c & ~1u;
  if (c == 0x131) return 'I';
  if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E)) return c % 2 == 0 ? c - 1 : c;
  if (c >= 0x3B1 && c <= 0x3CB) return c == 0x3C2 ? 0x3A3 : c - 32;
  if (c == 0x3AC) return 0x386;
  if (c >= 0x3AD && c <= 0x3AF) return c - 37;
  if (c == 0x3CC) return 0x38C;
  if (c == 0x3CD || c == 0x3CE) return c - 63;
  if (c >= 0x430 && c <= 0x44F) return c - 32;
  if (c >= 0x450 && c <= 0x45F) return c - 80;
  if ((c >= 0x460 && c <= 0x481) || (c >= 0x48A && c <= 0x4BF) || (c >= 0x4D0 && c <= 0x52F))
    return c & ~1u;
  if (c >= 0x561 && c <= 0x586) return c - 48;
  if (c >= 0x1E00 && c <= 0x1E95) return c & ~1u;
  if (c >= 0x1EA0 && c <= 0x1EFF) return c & ~1u;
  return c;
}

uint32_t to_lower(uint32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  if (c == 0x178) return 0xFF;
  if (c >= 0xC0 && c <= 0xDE && c != 0xD7) return c + 32;
  if ((c >= 0x100 && c <= 0x137 && c != 0x130) || (c >= 0x14A && c <= 0x177)) return c | 1u;
  if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E)) return c % 2 == 1 ? c + 1 : c;
  if (c >= 0x391 && c <= 0x3AB && c != 0x3A2) return c + 32;
  if (c == 0x386) return 0x3AC;
  if (c >= 0x388 && c <= 0x38A) return c + 37;
  if (c == 0x38C) return 0x3CC;
  if (c == 0x38E || c == 0x38F) return c + 63;
  if (c >= 0x410 && c <= 0x42F) return c + 32;
  if (c >= 0x400 && c <= 0x40F) return c + 80;
  if ((c >= 0x460 && c <= 0x481) || (c >= 0x48A && c <= 0x4BF) || (c >= 0x4D0 && c <= 0x52F))
    return c | 1u;
  if (c >= 0x531 && c <= 0x556) return c + 48;
  if ((c >= 0x1E00 && c <= 0x1E95) || (c >= 0x1EA0 && c <= 0x1EFF)) return c | 1u;
  return c;
}

bool is_cased(uint32_t c) { return to_upper(c) != c || to_lower(c) != c || c == 0xDF; }

namespace {

template <typename Map>
std::string map_chars(std::string_view text, Map map) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0, bytes; at < text.size(); at += bytes) {
    const uint32_t c = decode_char(text, at, &bytes);
    const uint32_t mapped = map(c);
    if (mapped == c) {
      out.append(text.substr(at, bytes));
    } else {
      append_utf8(out, mapped);
    }
  }
  return out;
}

bool in_set(std::string_view chars, uint32_t c, std::string_view raw) {
  if (chars.empty()) return is_space(c);
  for (size_t at = 0, bytes; at < chars.size(); at += bytes) {
    decode_char(chars, at, &bytes);
    if (chars.substr(at, bytes) == raw) return true;
  }
  return false;
}

bool is_line_break(uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(uint32_t c) {
  if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) return false;
  if (c >= 0xE000 && c <= 0xF8FF) return false;
  return !(is_space(c) && c != ' ') && !(c >= 0x200B && c <= 0x200F) &&
         !(c >= 0x202A && c <= 0x202E) && !(c >= 0x2060 && c <= 0x206F) && c != 0xFEFF;
}

}  // namespace

std::string upper(std::string_view text) { return map_chars(text, to_upper); }
std::string lower(std::string_view text) { return map_chars(text, to_lower); }

std::string capitalize(std::string_view text) {
  bool first = true;
  return map_chars(
      text, [&](uint32_t c) { return std::exchange(first, false) ? to_upper(c) : to_lower(c); });
}

std::string title_python(std::string_view text) {
  bool in_word = false;
  return map_chars(text, [&](uint32_t c) {
    const uint32_t mapped = in_word ? to_lower(c) : to_upper(c);
    in_word = is_cased(c);
    return mapped;
  });
}

std::string title_jinja(std::string_view text) {
  bool start = true;
  return map_chars(text, [&](uint32_t c) {
    const bool breaks = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    const uint32_t mapped = start ? to_upper(c) : to_lower(c);
    start = breaks;
    return mapped;
  });
}

std::string_view strip_left(std::string_view text, std::string_view chars) {
  size_t at = 0, bytes;
  while (at < text.size()) {
    const uint32_t c = decode_char(text, at, &bytes);
    if (!in_set(chars, c, text.substr(at, bytes))) break;
    at += bytes;
  }
  return text.substr(at);
}

std::string_view strip_right(std::string_view text, std::string_view chars) {
  size_t end = text.size();
  while (end > 0) {
    // Skip continuation bytes back to the start of the last character; invalid bytes are single.
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80)
      --start;
    size_t bytes;
    uint32_t c = decode_char(text.substr(0, end), start, &bytes);
    if (start + bytes != end) {
      start = end - 1;
      c = 0xFFFD;
    }
    if (!in_set(chars, c, text.substr(start, end - start))) break;
    end = start;
  }
  return text.substr(0, end);
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // memmem is linear in the C libraries that braid builds on; string_view::find is not for needles
  // like "aaaa...b".
  const void* hit = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return hit == nullptr ? std::string_view::npos
                        : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t at = 0, bytes; at < text.size(); at += bytes) {
    const uint32_t c = decode_char(text, at, &bytes);
    if (!is_line_break(c)) continue;
    lines.push_back(text.substr(start, at - start));
    if (c == '\r' && at + 1 < text.size() && text[at + 1] == '\n') bytes = 2;
    start = at + bytes;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string format_real(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  // Shortest digits as d[.ddd]e[+-]xx, converted to Python's layout.
  std::string_view scientific(buffer, static_cast<size_t>(end - buffer));
  const size_t e = scientific.find('e');
  const int exponent = std::atoi(std::string(scientific.substr(e + 1)).c_str());
  std::string sign, digits;
  for (const char c : scientific.substr(0, e)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits += c;
  }
  const int count = static_cast<int>(digits.size());
  const auto zeros = [](int n) { return std::string(static_cast<size_t>(n), '0'); };
  if (exponent < -4 || exponent >= 16) {
    if (count > 1) digits.insert(1, ".");
    return fmt::format("{}{}e{}{:02}", sign, digits, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{}{}", sign, zeros(-exponent - 1), digits);
  if (count <= exponent + 1)
    return fmt::format("{}{}{}.0", sign, digits, zeros(exponent + 1 - count));
  digits.insert(static_cast<size_t>(exponent + 1), ".");
  return fmt::format("{}{}", sign, digits);
}

void append_repr(std::string& out, std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t at = 0, bytes; at < text.size(); at += bytes) {
    const uint32_t c = decode_char(text, at, &bytes);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(text.substr(at, bytes));
    } else {
      out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      append_hex(out, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
    }
  }
  out += quote;
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace braid::jinja
