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

// Empty if something else is used, named in `why`.
std::optional<Expression::Node> read_pattern(Expression& out, std::string_view pattern,
                                             std::string& why);

}  // namespace braid::server
