// grammar_parts.cpp -- see grammar_parts.h.
#include "server/automata/grammar_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/check.h"

namespace braid::server {

namespace {

using Node = Expression::Node;

constexpr int kMaxIndentation = 24;
constexpr size_t kMaxDigits = 18;
constexpr size_t kMostBoundDigits = 64;
constexpr double kMostWritten = 1e300;

// Of pieces that are the same for everybody, whose size is known.
Automaton made(std::optional<Automaton> automaton) {
  BRAID_CHECK(automaton.has_value());
  return std::move(*automaton);
}

}  // namespace

std::string json_literal(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- Text ------------------------------------------------------------------------------------------------

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
  for (const auto& [low, high] : {std::pair{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}}) sequence({{low, high}});
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
  // \uXXXX, where surrogates come in pairs.
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
      control("\\", {{'"', '"'}, {'\\', '\\'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}}),
      control("\\u000", {{'0', '7'}, {'b', 'b'}, {'e', 'f'}}),
      control("\\u001", {{'0', '9'}, {'a', 'f'}}),
  });
  const Node quote = out.character('"');
  return made(
      out.compile(out.sequence({quote, out.repeat(character, 0, -1), quote}), Expression::Spelling::plain));
}

// Unbounded blanks would let a small model write nothing else.
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

// One state for each beginning of a mark that the text may end with.
Automaton text_until(std::string_view mark, std::string_view forbidden, std::string_view begun_with) {
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

// ---- Numbers ---------------------------------------------------------------------------------------------

namespace {

Node digits(Expression& out, size_t least, size_t most) {
  return out.repeat(out.characters({{'0', '9'}}), static_cast<int64_t>(least), static_cast<int64_t>(most));
}

Node digit(Expression& out, char low, char high) {
  return out.characters({{static_cast<char32_t>(low), static_cast<char32_t>(high)}});
}

// Texts of digits as long as `text`: those not below it (up), or not above it; from position `from` on.
Node digits_beside(Expression& out, const std::string& text, bool up, size_t from) {
  Node rest = out.nothing();
  for (size_t i = text.size(); i-- > from;) {
    const size_t left = text.size() - i - 1;
    std::vector<Node> options{out.sequence({digit(out, text[i], text[i]), rest})};
    if (up && text[i] < '9')
      options.push_back(
          out.sequence({digit(out, static_cast<char>(text[i] + 1), '9'), digits(out, left, left)}));
    if (!up && text[i] > '0')
      options.push_back(
          out.sequence({digit(out, '0', static_cast<char>(text[i] - 1)), digits(out, left, left)}));
    rest = out.choice(std::move(options));
  }
  return rest;
}

// `low` and `high` are as long as each other, and low is not above high.
Node digits_between(Expression& out, const std::string& low, const std::string& high) {
  const size_t same =
      static_cast<size_t>(std::mismatch(low.begin(), low.end(), high.begin()).first - low.begin());
  const Node begin = out.text(low.substr(0, same));
  if (same == low.size()) return begin;
  const size_t left = low.size() - same - 1;
  std::vector<Node> options;
  options.push_back(
      out.sequence({digit(out, low[same], low[same]), digits_beside(out, low, true, same + 1)}));
  options.push_back(
      out.sequence({digit(out, high[same], high[same]), digits_beside(out, high, false, same + 1)}));
  if (high[same] - low[same] > 1)
    options.push_back(
        out.sequence({digit(out, static_cast<char>(low[same] + 1), static_cast<char>(high[same] - 1)),
                      digits(out, left, left)}));
  return out.sequence({begin, out.choice(std::move(options))});
}

bool below(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

Node natural(Expression& out, std::string low, const std::optional<std::string>& high) {
  const bool bound = high && high->size() <= std::max(kMostBoundDigits, low.size());
  const std::string to = bound ? *high : std::string(std::max(kMaxDigits, low.size()), '9');
  if (low.size() == to.size()) return digits_between(out, low, to);
  const auto lowest = [](size_t length) { return "1" + std::string(length - 1, '0'); };
  std::vector<Node> options{digits_between(out, low, std::string(low.size(), '9')),
                            digits_between(out, lowest(to.size()), to)};
  if (low.size() + 1 < to.size())  // any of a length between
    options.push_back(out.sequence({digit(out, '1', '9'), digits(out, low.size(), to.size() - 2)}));
  return out.choice(std::move(options));
}

}  // namespace

bool operator<(const WholeNumber& a, const WholeNumber& b) {
  if (a.negative != b.negative) return a.negative;
  return a.negative ? below(b.digits, a.digits) : below(a.digits, b.digits);
}

std::optional<WholeNumber> WholeNumber::at(const Json& value, bool up, bool exclusive) {
  std::string text;
  bool whole = true;
  if (value.is_number_integer()) {
    text = value.dump();
  } else if (value.is_number_float()) {
    const double given = value.get<double>();
    if (!std::isfinite(given) || std::abs(given) > kMostWritten) return std::nullopt;
    const double rounded = up ? std::ceil(given) : std::floor(given);
    whole = rounded == given;
    text = fmt::format("{:.0f}", rounded);
  } else {
    return std::nullopt;
  }
  WholeNumber out;
  out.negative = text[0] == '-';
  out.digits = text.substr(out.negative ? 1 : 0);
  if (out.digits == "0") out.negative = false;
  if (!exclusive || !whole) return out;
  // One further: away from zero or towards it.
  const bool grows = out.negative != up || out.digits == "0";
  if (out.digits == "0") return WholeNumber{!up, "1"};
  size_t i = out.digits.size();
  while (i-- > 0 && out.digits[i] == (grows ? '9' : '0')) out.digits[i] = grows ? '0' : '9';
  if (i == std::string::npos)
    out.digits.insert(0, "1");
  else
    out.digits[i] = static_cast<char>(out.digits[i] + (grows ? 1 : -1));
  if (out.digits.size() > 1 && out.digits[0] == '0') out.digits.erase(0, 1);
  if (out.digits == "0") out.negative = false;
  return out;
}

Expression::Node integer_expression(Expression& out, std::optional<WholeNumber> low,
                                    std::optional<WholeNumber> high) {
  std::vector<Node> options;
  if (!high || !high->negative) {
    const std::string from = low && !low->negative ? low->digits : "0";
    options.push_back(natural(out, from, high ? std::optional(high->digits) : std::nullopt));
  }
  if (!low || low->negative) {
    const std::string from = high && high->negative ? high->digits : "1";
    options.push_back(out.sequence(
        {out.character('-'), natural(out, from, low ? std::optional(low->digits) : std::nullopt)}));
  }
  return out.choice(std::move(options));
}

Automaton json_number(bool not_negative) {
  GrammarBudget budget;
  Expression out(budget);
  std::vector<Node> parts;
  if (!not_negative) parts.push_back(out.optional(out.character('-')));
  parts.push_back(natural(out, "0", std::nullopt));
  parts.push_back(out.optional(out.sequence({out.character('.'), digits(out, 1, kMaxDigits)})));
  // Two digits of exponent: with 18 before the point no number is beyond a double, which readers refuse.
  const Node sign = out.optional(out.characters({{'+', '+'}, {'-', '-'}}));
  parts.push_back(
      out.optional(out.sequence({out.characters({{'e', 'e'}, {'E', 'E'}}), sign, digits(out, 1, 2)})));
  return made(out.compile(out.sequence(std::move(parts)), Expression::Spelling::plain));
}

std::optional<std::string> format_pattern(const std::string& name) {
  const std::string date = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
  const std::string time =
      "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
  if (name == "date") return "^" + date + "$";
  if (name == "time") return "^" + time + "$";
  if (name == "date-time") return "^" + date + "T" + time + "$";
  if (name == "uuid") return "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
  return std::nullopt;
}

}  // namespace braid::server
