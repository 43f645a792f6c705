// grammar_parts.h -- the regular pieces that JSON and calls are made of: characters, blanks, text up to
// a mark. Numbers are in numbers.h.
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
const Automaton& plain_character();  // the same as it is, in UTF-8
Automaton json_string();             // any, quotes included
// Any, quotes included, in the one spelling that json_literal() gives it.
Automaton json_member_name();
Automaton json_gap();   // between elements: nothing, one blank, or a line feed with some indentation
Automaton json_lead();  // before the value: a few blanks

// Any bytes up to and with the first `mark`, without `forbidden` before it; `begun`, a beginning of one of
// them, stands there already.
Automaton text_until(std::string_view mark, std::string_view forbidden = {}, std::string_view begun = {});

}  // namespace braid::server
