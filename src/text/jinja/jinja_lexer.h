// jinja_lexer.h -- template text to tokens, with white space control.
// Tokenizes the whole text at once. `data` is trimmed, strings are unescaped, numbers converted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace braid::jinja {

enum class TokenKind : uint8_t {
  data,         // text
  print_begin,  // {{
  print_end,    // }}
  block_begin,  // {%
  block_end,    // %}
  name,         // text
  string,       // text, unescaped
  integer,      // bits of an unsigned number; text: its spelling, if above 64 bits
  real,         // real
  symbol,       // text: an operator or bracket
  end,
};

struct Token {
  TokenKind kind;
  uint32_t line;
  std::string text;
  int64_t integer = 0;
  double real = 0;

  bool is(TokenKind other) const { return kind == other; }
  bool is_symbol(std::string_view symbol) const {
    return kind == TokenKind::symbol && text == symbol;
  }
  bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
};

// The last token is always `end`.
Result<std::vector<Token>> tokenize(std::string_view text);

// "template line N: message".
Error syntax_error(uint32_t line, std::string_view message);

}  // namespace braid::jinja
