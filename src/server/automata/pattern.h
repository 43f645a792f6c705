// pattern.h -- the `pattern` of a schema: ECMA regular expressions as far as they are regular.
//
// Understood: characters, classes (also beyond ASCII), \d \w \s \D \W \S, escapes \n \t \r \f \v \0 \xHH
// \uHHHH \u{H...}, groups, alternatives, * + ? {m} {m,} {m,n} (lazy as well), ^ and $ at the ends of
// alternatives that no group encloses. Not: looking around, back references, \b, \p.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/automata/expression.h"

namespace braid::server {

// Empty: it uses something else, and `why` says what.
std::optional<Expression::Node> read_pattern(Expression& out, std::string_view pattern, std::string& why);

}  // namespace braid::server
