// call_texts.h -- the free text around calls, as an automaton.
#pragma once

#include "server/automata/byte_automaton.h"
#include "text/dialect.h"

namespace braid::server {

// Any text up to and with what opens a call. It accepts where a call may begin, as the parser of answers
// reads it (answer_parser.h):
//   where a line begins: there is no way on but the call
//   in the middle of a line: the call, or the text goes on if what follows is none
//   in code between backticks: the same, and a call begins on the next line only
//   inside a fence: never
Automaton text_until_call(const Dialect& dialect);

}  // namespace braid::server
