// json_scanner.h -- finds the ends of values in JSON text, so that parts of it can be replaced and
// the rest stays byte for byte. It checks no more than it needs for that.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/json.h"

namespace braid::server {

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  size_t at() const { return at_; }
  bool take(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  char next() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  // False if it breaks off.
  bool skip_string() {
    if (!take('"')) return false;
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        ++at_;
        return true;
      }
    }
    return false;
  }
  bool skip_value() {
    const char first = next();
    if (first == '"') return skip_string();
    size_t depth = 0;
    do {
      switch (next()) {
        case '\0':
          return false;
        case '"':
          if (!skip_string()) return false;
          break;
        case '{':
        case '[':
          ++depth;
          ++at_;
          break;
        case '}':
        case ']':
          if (depth == 0) return false;
          --depth;
          ++at_;
          break;
        default:
          if (depth == 0) {
            skip_word();
          } else {
            ++at_;
          }
      }
    } while (depth > 0);
    return true;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string::npos)
      ++at_;
  }
  void skip_word() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n,]}").find(text_[at_]) == std::string::npos)
      ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Whether a quoted string of JSON is `text`, however it is spelled.
inline bool is_text(std::string_view quoted, std::string_view text) {
  if (quoted.size() < 2 || quoted.front() != '"') return false;
  if (quoted.find('\\') == std::string_view::npos)
    return quoted.substr(1, quoted.size() - 2) == text;
  const auto decoded = parse_json(quoted);
  return decoded.ok() && decoded->is_string() && decoded->get_ref<const std::string&>() == text;
}

// Calls `member` with the name, in quotes as it is written, and the value of each member. False:
// `object` is no object.
template <typename Member>
bool for_members(std::string_view object, Member member) {
  JsonScanner scan(object);
  if (!scan.take('{')) return false;
  if (scan.take('}')) return true;
  do {
    if (scan.next() != '"') return false;
    const size_t name = scan.at();
    if (!scan.skip_string()) return false;
    const size_t name_end = scan.at();
    if (!scan.take(':')) return false;
    scan.next();
    const size_t begin = scan.at();
    if (!scan.skip_value()) return false;
    member(object.substr(name, name_end - name), object.substr(begin, scan.at() - begin));
  } while (scan.take(','));
  return scan.take('}');
}

// The same for the elements of an array.
template <typename Element>
bool for_elements(std::string_view array, Element element) {
  JsonScanner scan(array);
  if (!scan.take('[')) return false;
  if (scan.take(']')) return true;
  do {
    scan.next();
    const size_t begin = scan.at();
    if (!scan.skip_value()) return false;
    element(array.substr(begin, scan.at() - begin));
  } while (scan.take(','));
  return scan.take(']');
}

}  // namespace braid::server
