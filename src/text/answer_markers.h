// answer_markers.h -- the tags that models write, and limits on what stands between them. For answer_parser
// only.
#pragma once

#include <cstddef>
#include <string_view>

namespace braid::answer_markers {

inline constexpr std::string_view kThinkOpen = "<think>", kThinkClose = "</think>";
inline constexpr std::string_view kCallOpen = "<tool_call>", kCallClose = "</tool_call>";
inline constexpr std::string_view kFunctionOpen = "<function=", kFunctionClose = "</function>";
inline constexpr std::string_view kParameterOpen = "<parameter=", kParameterClose = "</parameter>";
inline constexpr std::string_view kKeyOpen = "<arg_key>", kKeyClose = "</arg_key>";
inline constexpr std::string_view kValueOpen = "<arg_value>", kValueClose = "</arg_value>";

inline constexpr std::string_view kBlanks = " \t\r\n";
inline constexpr size_t kMaxGap = 64;         // blanks between <tool_call> and what it wraps
inline constexpr size_t kMaxBlanks = 1024;    // looked past when a decision depends on what follows
inline constexpr size_t kMaxNameBytes = 128;  // inside a tag
inline constexpr int kMaxBodyAttempts = 8;    // places in one function where a JSON body is looked for

constexpr bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }

constexpr bool is_plain_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == ':' || c == '-';
}

constexpr std::string_view trim_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace braid::answer_markers
