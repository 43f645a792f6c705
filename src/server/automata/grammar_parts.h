// grammar_parts.h -- the regular pieces that JSON and calls are made of: characters, blanks, numbers,
// formats, text up to a mark.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api/api_error.h"
#include "server/automata/byte_automaton.h"
#include "server/automata/expression.h"

namespace braid::server {

// A value as it must be written.
std::string json_literal(const Json& value);

// Exactly one character between the quotes of a JSON string: UTF-8, or any escape of it; a pair of surrogates
// is one. Its state 0 is "between characters".
const Automaton& json_character();
Automaton json_string();  // any, quotes included
// Any, quotes included, in the one spelling that json_literal() gives it.
Automaton json_member_name();
Automaton json_gap();   // between elements: nothing, one blank, or a line feed with some indentation
Automaton json_lead();  // before the value: a few blanks
Automaton json_number(bool not_negative);

// Any bytes up to and with the first `mark`, without `forbidden` before it; `begun`, a beginning of one of
// them, stands there already.
Automaton text_until(std::string_view mark, std::string_view forbidden = {}, std::string_view begun = {});

// A whole number of any size, as it is written: without zeros in front.
struct WholeNumber {
  bool negative = false;
  std::string digits = "0";

  // Not below (up) or not above `value`; empty: it is no number that could be written out.
  static std::optional<WholeNumber> at(const Json& value, bool up, bool exclusive);
  WholeNumber negated() const { return {!negative && digits != "0", digits}; }
};
bool operator<(const WholeNumber& a, const WholeNumber& b);

// Whole numbers from `low` to `high`; without bounds up to 18 digits, or as many as the other bound has. A
// bound of more than 64 digits that is farther from zero than the other counts as none.
Expression::Node integer_expression(Expression& out, std::optional<WholeNumber> low,
                                    std::optional<WholeNumber> high);
// date, time, date-time, uuid; empty: not known.
std::optional<std::string> format_pattern(const std::string& name);

}  // namespace braid::server
