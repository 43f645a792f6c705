// grammar_parts.h -- the pieces that JSON grammars are made of: blanks, literals, strings, numbers, patterns.
// For schema_grammar.cpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/token_grammar.h"

namespace braid::server {

// A value as it must be written.
std::string json_literal(const Json& value);

class GrammarParts {
 public:
  using Rule = ByteGrammar::Rule;

  explicit GrammarParts(ByteGrammar& grammar) : grammar_(grammar) {}

  Rule literal(std::string_view text);
  Rule gap();           // between elements: nothing, one blank, or a line feed with some indentation
  Rule lead();          // before the value: a few blanks
  Rule any_value();     // any JSON
  Rule string_value();  // any JSON string
  // Any bytes up to and with the first `mark`, without `forbidden` before it; or any that do not hold it.
  // `begun`: the beginning of the mark that the text before ends with.
  Rule text_until(std::string_view mark, std::string_view forbidden = {}, std::string_view begun = {});
  Rule text_without(std::string_view mark);
  Rule bounded_string(int64_t least, std::optional<int64_t> most);  // characters
  Rule number(bool not_negative);
  Rule integer(std::optional<int64_t> low, std::optional<int64_t> high);
  // date, time, date-time, uuid; empty: not known.
  std::optional<Rule> format(const std::string& name);
  // The JSON string whose content matches a regular expression (classes, groups, alternatives, repetition,
  // anchors at the ends). Empty: it uses something else.
  std::optional<Rule> pattern(const std::string& expression);

 private:
  friend class PatternReader;
  Rule character();                            // one character of a JSON string, escapes included
  Rule optional_repeat(Rule what, int times);  // 0 to `times` of it
  Rule digits(int least, int most);
  Rule digits_at_least(const std::string& text, size_t from);
  Rule digits_at_most(const std::string& text, size_t from);
  Rule digits_between(const std::string& low, const std::string& high, size_t from);
  Rule natural(int64_t low, std::optional<int64_t> high);
  Rule sequence(ByteGrammar::Sequence sequence);
  Rule text_automaton(std::string_view mark, std::string_view forbidden, std::string_view begun, bool until);

  ByteGrammar& grammar_;
  std::map<std::pair<std::string, bool>, Rule> texts_;  // by marks
  Rule gap_ = -1, lead_ = -1, any_ = -1, string_ = -1, character_ = -1, digit_ = -1, rest_ = -1;
};

}  // namespace braid::server
