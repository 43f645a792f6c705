// expression.h -- regular expressions over characters as trees, and as byte automata.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/api/structured/byte_automaton.h"

namespace braid::server {

class Expression {
 public:
  using Node = int32_t;
  struct Range {
    char32_t low, high;
  };
  // json_string: as between the quotes of a JSON string, with the shortest escape where needed.
  enum class Spelling { plain, json_string };

  explicit Expression(GrammarBudget& budget) : budget_(budget) {}

  Node nothing() { return sequence({}); }  // the empty text
  Node characters(std::vector<Range> ranges);
  Node character(char32_t c) { return characters({{c, c}}); }
  Node text(std::string_view utf8);
  Node sequence(std::vector<Node> parts);
  Node choice(std::vector<Node> options);
  // most < 0: no limit.
  Node repeat(Node what, int64_t least, int64_t most);
  Node optional(Node what) { return repeat(what, 0, 1); }

  // Empty if beyond the budget.
  std::optional<Automaton> compile(Node root, Spelling spelling);

  GrammarBudget& budget() { return budget_; }

 private:
  struct Part {
    enum class Kind : uint8_t { characters, sequence, choice, repeat } kind;
    std::vector<Range> ranges;
    std::vector<Node> parts;
    int64_t least = 0, most = 0;
  };
  Node add(Part part);
  int32_t emit(Nfa& nfa, Node node, int32_t from, Spelling spelling);
  int32_t emit_repeat(Nfa& nfa, const Part& part, int32_t from, Spelling spelling);

  GrammarBudget& budget_;
  std::vector<Part> parts_;
};

std::vector<Expression::Range> complement(std::vector<Expression::Range> ranges);

}  // namespace braid::server
