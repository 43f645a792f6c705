// blanks.h -- blanks between and around the parts of a text.
#pragma once

#include <algorithm>
#include <string_view>

namespace braid {

// Of markup, JSON and lines.
inline constexpr std::string_view kBlanks = " \t\r\n";
// Those of ASCII, for texts that templates (Python's strip) trim.
inline constexpr std::string_view kAsciiBlanks = " \t\r\n\v\f";

// One of kBlanks.
constexpr bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

constexpr bool all_blank(std::string_view text, std::string_view blanks = kBlanks) {
  return text.find_first_not_of(blanks) == std::string_view::npos;
}

constexpr std::string_view trimmed_start(std::string_view text, std::string_view blanks = kBlanks) {
  return text.substr(std::min(text.find_first_not_of(blanks), text.size()));
}

constexpr std::string_view trimmed_end(std::string_view text, std::string_view blanks = kBlanks) {
  return text.substr(0, text.find_last_not_of(blanks) + 1);
}

constexpr std::string_view trimmed(std::string_view text, std::string_view blanks = kBlanks) {
  return trimmed_end(trimmed_start(text, blanks), blanks);
}

}  // namespace braid
