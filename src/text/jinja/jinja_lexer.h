// jinja_lexer.h -- template text to tokens, white space control included.
//
// The whole text is cut at once. Data between tags comes out as `data` tokens with trimming already done, so
// the parser never sees white space rules. Strings are unescaped, numbers are values.
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
  integer,  // integer: the bits of an unsigned number; text: as it is spelled, if it has more than 64 bits
  real,     // real
  symbol,   // text: one of the operators and brackets
  end,
};

struct Token {
  TokenKind kind;
  uint32_t line;
  std::string text;
  int64_t integer = 0;
  double real = 0;

  bool is(TokenKind other) const { return kind == other; }
  bool is_symbol(std::string_view symbol) const { return kind == TokenKind::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
};

// The last token is always `end`.
Result<std::vector<Token>> tokenize(std::string_view text);

// An error of the template text: "template line N: message".
Error syntax_error(uint32_t line, std::string_view message);

}  // namespace braid::jinja
