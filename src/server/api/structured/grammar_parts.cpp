// grammar_parts.cpp -- see grammar_parts.h.
#include "server/api/structured/grammar_parts.h"

#include <map>
#include <vector>

#include "base/check.h"

namespace braid::server {

namespace {

using Node = Expression::Node;

constexpr int kMaxIndentation = 24;

// For fixed automata, whose size is known to fit the budget.
Automaton made(std::optional<Automaton> automaton) {
  BRAID_CHECK(automaton.has_value());
  return std::move(*automaton);
}

}  // namespace

std::string json_literal(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

void add_hex(Nfa& nfa, int32_t from, std::string_view ranges, int32_t to) {
  for (size_t i = 0; i + 1 < ranges.size(); i += 2)
    nfa.edge(from, static_cast<uint8_t>(ranges[i]), static_cast<uint8_t>(ranges[i + 1]), to);
}

Automaton make_json_character() {
  GrammarBudget budget;
  Nfa nfa(budget);
  const int32_t start = nfa.add(), end = nfa.add();
  const auto sequence = [&](std::vector<std::pair<int, int>> bytes) {
    int32_t at = start;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const int32_t to = i + 1 == bytes.size() ? end : nfa.add();
      nfa.edge(at, static_cast<uint8_t>(bytes[i].first), static_cast<uint8_t>(bytes[i].second), to);
      at = to;
    }
  };
  for (const auto& [low, high] : {std::pair{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}})
    sequence({{low, high}});
  const std::pair tail{0x80, 0xBF};
  sequence({{0xC2, 0xDF}, tail});
  sequence({{0xE0, 0xE0}, {0xA0, 0xBF}, tail});
  sequence({{0xE1, 0xEC}, tail, tail});
  sequence({{0xED, 0xED}, {0x80, 0x9F}, tail});
  sequence({{0xEE, 0xEF}, tail, tail});
  sequence({{0xF0, 0xF0}, {0x90, 0xBF}, tail, tail});
  sequence({{0xF1, 0xF3}, tail, tail, tail});
  sequence({{0xF4, 0xF4}, {0x80, 0x8F}, tail, tail});
  for (const char c : std::string_view("\"\\/bfnrt")) sequence({{'\\', '\\'}, {c, c}});
  const int32_t escape = nfa.add(), digits = nfa.add();
  nfa.edge(start, '\\', '\\', escape);
  nfa.edge(escape, 'u', 'u', digits);
  const int32_t two = nfa.add(), three = nfa.add(), one = nfa.add();
  add_hex(nfa, digits, "09acefACEF", three);
  add_hex(nfa, three, "09afAF", two);
  add_hex(nfa, two, "09afAF", one);
  add_hex(nfa, one, "09afAF", end);
  const int32_t high = nfa.add();
  add_hex(nfa, digits, "ddDD", high);
  add_hex(nfa, high, "07", two);
  int32_t at = nfa.add();
  add_hex(nfa, high, "89abAB", at);
  for (const std::string_view next : {"09afAF", "09afAF", "\\\\", "uu", "ddDD", "cfCF"}) {
    const int32_t to = next == "cfCF" ? two : nfa.add();
    add_hex(nfa, at, next, to);
    at = to;
  }
  return made(nfa.determinise(start, end));
}

}  // namespace

const Automaton& json_character() {
  static const Automaton kCharacter = make_json_character();
  return kCharacter;
}

const Automaton& plain_character() {
  static const Automaton kCharacter = [] {
    GrammarBudget budget;
    Expression out(budget);
    return made(out.compile(out.characters(complement({})), Expression::Spelling::plain));
  }();
  return kCharacter;
}

Automaton json_string() {
  GrammarBudget budget;
  Nfa nfa(budget);
  const int32_t between = nfa.add(), end = nfa.add();
  nfa.embed(json_character(), between, between);
  nfa.jump(between, end);
  return made(nfa.determinise(between, end)).quoted();
}

Automaton json_member_name() {
  GrammarBudget budget;
  Expression out(budget);
  const auto control = [&](std::string_view begin, const std::vector<Expression::Range>& last) {
    return out.sequence({out.text(begin), out.characters(last)});
  };
  const Node character = out.choice({
      out.characters({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}, {0x80, 0x10FFFF}}),
      control(
          "\\",
          {{'"', '"'}, {'\\', '\\'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}}),
      control("\\u000", {{'0', '7'}, {'b', 'b'}, {'e', 'f'}}),
      control("\\u001", {{'0', '9'}, {'a', 'f'}}),
  });
  const Node quote = out.character('"');
  return made(out.compile(out.sequence({quote, out.repeat(character, 0, -1), quote}),
                          Expression::Spelling::plain));
}

// Bounded, because a small model may write blanks forever.
Automaton json_gap() {
  GrammarBudget budget;
  Expression out(budget);
  const Node blank = out.character(' ');
  const Node line = out.sequence({out.character('\n'), out.repeat(blank, 0, kMaxIndentation)});
  return made(out.compile(out.optional(out.choice({blank, line})), Expression::Spelling::plain));
}

Automaton json_lead() {
  GrammarBudget budget;
  Expression out(budget);
  const Node blank = out.characters({{' ', ' '}, {'\n', '\n'}});
  return made(out.compile(out.repeat(blank, 0, 4), Expression::Spelling::plain));
}

// One state per prefix of a mark that the text may end with.
Automaton text_until(std::string_view mark, std::string_view forbidden,
                     std::string_view begun_with) {
  std::map<std::string, int32_t> states{{std::string(begun_with), 0}};
  states.emplace("", static_cast<int32_t>(states.size()));
  for (const std::string_view one : {mark, forbidden}) {
    for (size_t k = 1; k < one.size(); ++k)
      states.emplace(std::string(one.substr(0, k)), static_cast<int32_t>(states.size()));
  }
  const auto end = static_cast<int32_t>(states.size());
  std::vector<std::array<int32_t, 256>> next(states.size() + 1);
  for (auto& row : next) row.fill(Automaton::kDead);
  for (const auto& [begun, state] : states) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = begun + static_cast<char>(byte);
      int32_t& to = next[static_cast<size_t>(state)][static_cast<size_t>(byte)];
      if (text.ends_with(mark)) {
        to = end;
      } else if (forbidden.empty() || !text.ends_with(forbidden)) {
        while (!states.contains(text)) text.erase(0, 1);
        to = states[text];
      }
    }
  }
  std::vector<uint8_t> accepts(next.size());
  accepts.back() = 1;
  GrammarBudget budget;
  return made(Automaton::from_table(next, accepts, budget));
}

}  // namespace braid::server
