// call_grammar.h -- calls of the offered tools, as the model's template writes them.
//
// Names are those of the offered tools. Arguments follow the schema where the client asked for strictness, or
// everywhere if the operator did; elsewhere they are any JSON object, or any text of the markup. A schema
// that cannot be compiled is an error where the client asked, and frees the arguments of its tool where only
// the operator did.
#pragma once

#include <string>

#include "server/api/generation.h"
#include "server/automata/byte_automaton.h"
#include "server/schema/value_shapes.h"
#include "text/answer/arguments.h"
#include "text/dialect.h"

namespace braid::server {

// Any text up to and with what opens a call. It accepts where a call may begin, as the parser of answers
// reads it (answer_parser.h):
//   where a line begins: there is no way on but the call
//   in the middle of a line: the call, or the text goes on if what follows is none
//   in code between backticks: the same, and a call begins on the next line only
//   inside a fence: never
Automaton text_until_call(const Dialect& dialect);

class CallGrammar {
 public:
  // `all_strict`: the operator asks for schemas everywhere.
  CallGrammar(GrammarProgram& program, ValueShapes& shapes, GrammarBudget& budget,
              const Generation& generation, const Dialect& dialect, bool all_strict);

  // Both end with `end`. One call or, if they may be several, more of them:
  int32_t calls();
  // Free text in which a call, where one begins, keeps the form.
  int32_t text_with_calls();

  const std::string& error() const { return error_; }

 private:
  // What stands behind the opening marker, up to the end of the closing one; goes on at `after` + what the
  // caller patches.
  void body();
  void finish_body(int32_t after);
  int32_t tool(const Json& function, bool strict);
  int32_t free_arguments();
  bool strict_arguments(const Json& schema, GrammarBudget& budget);
  bool strict_parameters(const Json& schema, bool strict, GrammarBudget& budget);
  // `schema`: null if the parameter has none, and then it is a text.
  // False: nothing can be written, and reason_ says why.
  // `texts`: reads schemas of texts, with the part of the budget that these have.
  bool parameter_value(const Json* schema, const ArgumentTypes& types, class SchemaReader& reader,
                       class SchemaReader& texts, GrammarBudget& budget, GrammarBudget& text_budget);
  // Whether the listed parameters can be written in a call; else reason_ says which cannot.
  bool can_be_written(const ToolParameters& known);
  // The opening of a parameter that is none of those of `set`, which are `openings`. False: there can be none.
  bool add_other_name(int32_t set, const std::vector<std::string>& openings);
  void add_text(std::string_view mark, std::string_view forbidden = {}, std::string_view begun = {});
  void leave() { exits_.push_back(program_.add(Instruction::Op::jump)); }
  bool json() const { return dialect_.calls == Dialect::Calls::json; }
  bool pairs() const { return dialect_.calls == Dialect::Calls::key_value; }
  void add_literal(std::string_view text) {
    if (!text.empty()) program_.literal(text);
  }
  void string_value();
  bool held_text(const Json& schema, bool null, class SchemaReader& texts, GrammarBudget& budget);

  GrammarProgram& program_;
  ValueShapes& shapes_;
  GrammarBudget& budget_;
  const Generation& generation_;
  // Tags with the layout around them, as templates write it.
  const Dialect dialect_;
  const std::string line_;                    // what ends a line of markup
  const std::string function_;                // what opens a function
  const std::string name_open_, name_close_;  // around a parameter's name, up to its value
  const std::string parameter_end_;           // of a value and its tag
  const std::string function_end_;            // of a function and the call
  const std::string json_end_;                // of a JSON call
  bool all_strict_;
  std::vector<int32_t> exits_;  // jumps behind a call
  int32_t names_ = -1;          // instruction of the tools' names
  std::string error_;
  std::string reason_;  // why the last schema could not be compiled
};

}  // namespace braid::server
