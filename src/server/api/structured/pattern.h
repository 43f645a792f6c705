// pattern.h -- the `pattern` of a schema: the regular part of ECMA regular expressions.
// Accepted: characters, classes (also beyond ASCII), \d \w \s \D \W \S, escapes \n \t \r \f \v \0
// \xHH \uHHHH \u{H...}, groups, alternatives, * + ? {m} {m,} {m,n} (also lazy), and ^ and $ at the
// ends of top-level alternatives. Not accepted: lookaround, back references, \b, \p.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api/structured/expression.h"

namespace braid::server {

struct PatternFault {
  std::string why;         // what the pattern has
  bool too_large = false;  // what it has is supported, but beyond every budget
};

// Empty with its fault, or if the budget is used up.
std::optional<Expression::Node> read_pattern(Expression& out, std::string_view pattern,
                                             PatternFault& fault);

}  // namespace braid::server
