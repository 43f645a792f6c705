// answer_limits.h -- what counts as blank in an answer, and how much may stand between its tags. For
// answer_parser.h only.
#pragma once

#include <cstddef>
#include <string_view>

namespace braid::answer_limits {

inline constexpr std::string_view kBlanks = " \t\r\n";
inline constexpr size_t kMaxGap = 64;         // blanks between <tool_call> and what it wraps
inline constexpr size_t kMaxBlanks = 1024;    // looked past when a decision depends on what follows
inline constexpr size_t kMaxNameBytes = 128;  // inside a tag
inline constexpr int kMaxBodyAttempts = 8;    // places in one function where a JSON body is looked for

constexpr bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

constexpr std::string_view trim_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace braid::answer_limits
