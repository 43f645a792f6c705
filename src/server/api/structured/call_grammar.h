// call_grammar.h -- calls of the offered tools, in the markup of the model's template.
// Arguments match their schema if the client asks for strict tools, or for all tools by the
// operator's policy. Otherwise they are any JSON object or markup text. If a schema cannot be
// compiled, a strict tool is an error; with the policy alone its arguments are unconstrained.
#pragma once

#include <string>

#include "server/api/generation.h"
#include "server/api/structured/byte_automaton.h"
#include "server/api/structured/value_shapes.h"
#include "text/arguments.h"
#include "text/dialect.h"

namespace braid::server {

// Any text through the opening marker of a call. It accepts where the answer parser
// (answer_parser.h) would read a call:
// - at the start of a line: only the call may follow;
// - within a line: a call, or more text if it is not a call;
// - in code between backticks: likewise, but the call starts on the next line;
// - inside a fence: never.
Automaton text_until_call(const Dialect& dialect);

class CallGrammar {
 public:
  // `all_strict`: the operator's policy for all tools.
  CallGrammar(GrammarProgram& program, ValueShapes& shapes, GrammarBudget& budget,
              const Generation& generation, const Dialect& dialect, bool all_strict);

  // One call, or several if allowed. Both functions finish with `end`.
  int32_t calls();
  // Free text in which every call matches the grammar.
  int32_t text_with_calls();

  const std::string& error() const { return error_; }

 private:
  // From after the opening marker through the closing one. finish_body() sets where it continues.
  void body();
  void finish_body(int32_t after);
  int32_t tool(const Json& function, bool strict);
  int32_t free_arguments();
  bool strict_arguments(const Json& schema, GrammarBudget& budget);
  bool strict_parameters(const Json& schema, bool strict, GrammarBudget& budget);
  // `schema` null: a text. `texts` reads text schemas. False: impossible, see reason_.
  bool parameter_value(const Json* schema, const ArgumentTypes& types, class SchemaReader& reader,
                       class SchemaReader& texts, GrammarBudget& budget,
                       GrammarBudget& text_budget);
  // Whether calls can spell the listed parameters. Otherwise sets reason_.
  bool can_be_written(const ToolParameters& known);
  // A parameter's opening that is not in `openings` (word set `set`). False if there is none.
  bool add_other_name(int32_t set, const std::vector<std::string>& openings);
  void add_text(std::string_view mark, std::string_view forbidden = {},
                std::string_view begun = {});
  void leave() { exits_.push_back(program_.add(Instruction::Op::jump)); }
  bool hermes() const { return dialect_.calls == Dialect::Calls::hermes; }
  bool argkv() const { return dialect_.calls == Dialect::Calls::argkv; }
  void add_literal(std::string_view text) {
    if (!text.empty()) program_.literal(text);
  }
  void string_value();
  bool held_text(const Json& schema, bool null, class SchemaReader& texts, GrammarBudget& budget);

  GrammarProgram& program_;
  ValueShapes& shapes_;
  GrammarBudget& budget_;
  const Generation& generation_;
  // Tags with their surrounding layout, as written by templates.
  const Dialect dialect_;
  const std::string line_;                    // end of a line of markup
  const std::string function_;                // opens a function
  const std::string name_open_, name_close_;  // around a parameter's name, up to its value
  const std::string parameter_end_;           // ends a value, with its tag
  const std::string function_end_;            // ends a function and the call
  const std::string hermes_end_;              // ends a hermes call
  bool all_strict_;
  std::vector<int32_t> exits_;  // jumps after a call
  int32_t names_ = -1;          // instruction for the tools' names
  std::string error_;
  std::string reason_;  // why the last schema could not be compiled
};

}  // namespace braid::server
