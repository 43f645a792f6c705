// jinja_lexer.cpp -- see jinja_lexer.h. White space, with trim_blocks and lstrip_blocks:
//   {%- {{- {#-   drop all white space before.
//   -%} -}} -#}   drop all white space after.
//   {% {#         drop blanks before, if only they are between line start and tag.
//   %} #}         drop one newline directly after.
//   {%+ +%}       switch the last two off.
#include "text/jinja/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/hex.h"
#include "text/jinja/jinja_text.h"
#include "text/unicode.h"

namespace braid::jinja {

Error syntax_error(uint32_t line, std::string_view message) {
  return {ErrorKind::corrupt, fmt::format("template line {}: {}", line, message)};
}

namespace {

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size()) BRAID_TRY(section());
    push(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  Status section() {
    const size_t begin = find_tag(at_);
    const std::string_view data = std::string_view(text_).substr(at_, begin - at_);
    if (begin == text_.size()) {
      push_data(data);
      at_ = begin;
      return {};
    }
    const char type = text_[begin + 1];
    const char sign = begin + 2 < text_.size() ? text_[begin + 2] : ' ';
    push_data(trim_before(data, sign, type != '{'));
    at_ = begin + 2;
    if (sign == '-' || sign == '+') ++at_;
    if (type == '#') return comment();
    if (type == '%') {
      bool is_raw = false;
      BRAID_TRY(raw(&is_raw));
      if (is_raw) return {};
    }
    push(type == '{' ? TokenKind::print_begin : TokenKind::block_begin);
    return tag(type == '{' ? '}' : '%');
  }

  size_t find_tag(size_t from) const {
    for (size_t brace = text_.find('{', from); brace != std::string::npos;
         brace = text_.find('{', brace + 1)) {
      if (brace + 1 >= text_.size()) break;
      const char next = text_[brace + 1];
      if (next == '{' || next == '%' || next == '#') return brace;
    }
    return text_.size();
  }

  std::string_view trim_before(std::string_view data, char sign, bool block) const {
    if (sign == '-') return strip_right(data);
    if (sign == '+' || !block) return data;
    const size_t newline = data.rfind('\n');
    if (newline == std::string_view::npos && at_ != 0 && text_[at_ - 1] != '\n') return data;
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    return strip_left(data.substr(line_start)).empty() ? data.substr(0, line_start) : data;
  }

  void trim_after(char sign, bool block) {
    if (sign == '-') {
      const std::string_view rest = std::string_view(text_).substr(at_);
      advance(rest.size() - strip_left(rest).size());
    } else if (sign != '+' && block && at_ < text_.size() && text_[at_] == '\n') {
      advance(1);
    }
  }

  void advance(size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) line_ += text_[at_ + i] == '\n';
    at_ += bytes;
  }

  void push(TokenKind kind, std::string text = "") {
    tokens_.push_back({kind, line_, std::move(text)});
  }

  void push_data(std::string_view data) {
    const size_t whole = find_tag(at_) - at_;  // trimmed bytes count lines too
    if (!data.empty()) push(TokenKind::data, std::string(data));
    advance(whole);
  }

  Status comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) return syntax_error(line_, "a comment is not closed");
    const char sign = end > at_ ? text_[end - 1] : ' ';
    advance(end + 2 - at_);
    trim_after(sign, true);
    return {};
  }

  // {% raw %} ... {% endraw %}; `at_` is after the opening sign.
  Status raw(bool* is_raw) {
    size_t at = skip_space(at_);
    if (text_.compare(at, 3, "raw") != 0) return {};
    at = skip_space(at + 3);
    const bool strip = text_.compare(at, 3, "-%}") == 0;
    if (!strip && text_.compare(at, 2, "%}") != 0) return {};
    *is_raw = true;
    const uint32_t line = line_;
    advance(at + (strip ? 3 : 2) - at_);
    if (strip) trim_after('-', true);
    for (size_t begin = text_.find("{%", at_); begin != std::string::npos;
         begin = text_.find("{%", begin + 2)) {
      const char sign = begin + 2 < text_.size() ? text_[begin + 2] : ' ';
      size_t end = skip_space(begin + 2 + (sign == '-' || sign == '+'));
      if (text_.compare(end, 6, "endraw") != 0) continue;
      end = skip_space(end + 6);
      char end_sign = ' ';
      if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) end_sign = text_[end++];
      if (text_.compare(end, 2, "%}") != 0) continue;
      const std::string_view data =
          trim_before(std::string_view(text_).substr(at_, begin - at_), sign, true);
      if (!data.empty()) push(TokenKind::data, std::string(data));
      advance(end + 2 - at_);
      trim_after(end_sign, true);
      return {};
    }
    return syntax_error(line, "a raw block is not closed");
  }

  size_t skip_space(size_t at) const {
    while (at < text_.size()) {
      size_t bytes;
      if (!is_space(decode_char(text_, at, &bytes))) break;
      at += bytes;
    }
    return std::min(at, text_.size());
  }

  // Tokens up to the end of a tag; `closer` is the first character of its end mark.
  Status tag(char closer) {
    const uint32_t line = line_;
    std::string brackets;  // open ones: inside them "}}" and "%}" are not an end
    while (true) {
      advance(skip_space(at_) - at_);
      if (at_ >= text_.size()) return syntax_error(line, "a tag is not closed");
      if (brackets.empty() && end_of_tag(closer)) return {};
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        BRAID_TRY(string(c));
      } else if (c >= '0' && c <= '9') {
        BRAID_TRY(number());
      } else if (is_word_at(at_)) {
        const size_t begin = at_;
        while (at_ < text_.size() && is_word_at(at_)) at_ += char_bytes(text_, at_);
        push(TokenKind::name, text_.substr(begin, at_ - begin));
      } else {
        BRAID_TRY(symbol(brackets));
      }
    }
  }

  bool is_word_at(size_t at) const {
    size_t bytes;
    return is_word(decode_char(text_, at, &bytes));
  }

  bool end_of_tag(char closer) {
    size_t at = at_;
    const bool block = closer == '%';
    char sign = ' ';
    if (text_[at] == '-' || (block && text_[at] == '+')) sign = text_[at++];
    if (at + 1 >= text_.size() || text_[at] != closer || text_[at + 1] != '}') return false;
    push(block ? TokenKind::block_end : TokenKind::print_end);
    at_ = at + 2;
    trim_after(sign, block);
    return true;
  }

  Status symbol(std::string& brackets) {
    static constexpr std::string_view kDouble[] = {"**", "//", "==", "!=", ">=", "<="};
    static constexpr std::string_view kSingle = "+-/*%~[](){}<>=.:|,;";
    const std::string_view rest = std::string_view(text_).substr(at_);
    for (const std::string_view two : kDouble) {
      if (rest.substr(0, 2) == two) {
        push(TokenKind::symbol, std::string(two));
        at_ += 2;
        return {};
      }
    }
    const char c = rest[0];
    if (kSingle.find(c) == std::string_view::npos) {
      return syntax_error(
          line_, fmt::format("unexpected character '{}'", rest.substr(0, char_bytes(rest, 0))));
    }
    if (c == '(') brackets += ')';
    if (c == '[') brackets += ']';
    if (c == '{') brackets += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c)
        return syntax_error(line_, fmt::format("unexpected '{}'", c));
      brackets.pop_back();
    }
    push(TokenKind::symbol, std::string(1, c));
    ++at_;
    return {};
  }

  // 12  1_000  0x1f  0o17  0b11  1.5  1e3  1.5e-3
  Status number() {
    const auto digit = [&](size_t at) {
      return at < text_.size() && text_[at] >= '0' && text_[at] <= '9';
    };
    const auto digits = [&](size_t at) {
      while (digit(at) || (at < text_.size() && text_[at] == '_' && digit(at + 1))) ++at;
      return at;
    };
    if (text_[at_] == '0' && at_ + 2 < text_.size()) {
      const char mark = static_cast<char>(text_[at_ + 1] | 32);
      const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
      if (base != 0) return integer(at_ + 2, base);
    }
    size_t end = digits(at_);
    bool real = false;
    // 1.5, but not the 1.2 of x.1.2
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    if (!after_dot && end < text_.size() && text_[end] == '.' && digit(end + 1)) {
      real = true;
      end = digits(end + 1);
    }
    if (!after_dot && end < text_.size() && (text_[end] | 32) == 'e') {
      const size_t sign =
          end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (digit(end + 1 + sign)) {
        real = true;
        end = digits(end + 1 + sign);
      }
    }
    if (!real) return integer(at_, 10);
    std::string spelled;
    for (size_t at = at_; at < end; ++at) {
      if (text_[at] != '_') spelled += text_[at];
    }
    double value = 0;
    std::from_chars(spelled.data(), spelled.data() + spelled.size(), value);
    push(TokenKind::real);
    tokens_.back().real = value;
    at_ = end;
    return {};
  }

  Status integer(size_t from, int base) {
    std::string spelled;
    size_t at = from;
    for (; at < text_.size() && (is_word_at(at)); ++at) {
      if (text_[at] != '_') spelled += text_[at];
    }
    uint64_t value = 0;
    const auto [end, code] =
        std::from_chars(spelled.data(), spelled.data() + spelled.size(), value, base);
    const bool too_large = code == std::errc::result_out_of_range;
    if ((code != std::errc() && !too_large) || end != spelled.data() + spelled.size())
      return syntax_error(line_, "a number is malformed");
    push(TokenKind::integer, too_large ? spelled : "");
    tokens_.back().integer = static_cast<int64_t>(value);
    at_ = at;
    return {};
  }

  Status string(char quote) {
    const uint32_t line = line_;
    std::string value;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] == '\\') {
        if (!escape(&at, &value)) return syntax_error(line, "a string has a malformed escape");
      } else {
        value += text_[at++];
      }
    }
    if (at >= text_.size()) return syntax_error(line, "a string is not closed");
    push(TokenKind::string, std::move(value));
    advance(at + 1 - at_);
    return {};
  }

  bool escape(size_t* at, std::string* out) const {
    if (*at + 1 >= text_.size()) return false;
    const char c = text_[*at + 1];
    static constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      *out += kTo[known];
      *at += 2;
      return true;
    }
    if (c == '\n') {
      *at += 2;
      return true;
    }
    if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t end = *at + 1;
      for (; end < text_.size() && end < *at + 4 && text_[end] >= '0' && text_[end] <= '7'; ++end) {
        code = code * 8 + static_cast<uint32_t>(text_[end] - '0');
      }
      append_utf8(*out, code);
      *at = end;
      return true;
    }
    const size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width == 0) {  // Python keeps the backslash of an unknown escape
      *out += '\\';
      ++*at;
      return true;
    }
    const auto read = hex_number(text_, *at + 2, width);
    if (!read) return false;
    uint32_t code = *read;
    *at += 2 + width;
    const auto low =
        text_.compare(*at, 2, "\\u") == 0 ? hex_number(text_, *at + 2, 4) : std::nullopt;
    if (code >= 0xD800 && code < 0xDC00 && low && *low >= 0xDC00 && *low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (*low - 0xDC00);
      *at += 6;
    }
    append_utf8(*out, code);
    return true;
  }

  const std::string text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view text) {
  // Line ends become "\n"; one at the very end is not part of the template.
  std::string clean;
  clean.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      clean += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      clean += text[i];
    }
  }
  if (!clean.empty() && clean.back() == '\n') clean.pop_back();
  return Lexer(std::move(clean)).run();
}

}  // namespace braid::jinja
