// grammar_parts.h -- regular parts of JSON and calls: characters, blanks, text up to a mark.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api/api_error.h"
#include "server/api/structured/byte_automaton.h"
#include "server/api/structured/expression.h"

namespace braid::server {

// The required spelling of a value.
std::string json_literal(const Json& value);

// One character of a JSON string, or an escaped surrogate pair. State 0: between characters.
const Automaton& json_character();
const Automaton& plain_character();  // unescaped, in UTF-8
Automaton json_string();             // any string, with quotes
// Any string with quotes, in the spelling of json_literal().
Automaton json_member_name();
Automaton json_gap();   // between elements: empty, a blank, or a line feed and indentation
Automaton json_lead();  // before the value: a few blanks

// Bytes through the first `mark`, without `forbidden`. `begun`: the prefix already read.
Automaton text_until(std::string_view mark, std::string_view forbidden = {},
                     std::string_view begun = {});

}  // namespace braid::server
