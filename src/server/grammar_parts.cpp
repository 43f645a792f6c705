// grammar_parts.cpp -- see grammar_parts.h.
#include "server/grammar_parts.h"

#include <algorithm>
#include <vector>

#include "text/json_text.h"

namespace braid::server {

using Rule = ByteGrammar::Rule;
using Sequence = ByteGrammar::Sequence;

namespace {

constexpr int kMaxIndentation = 24;
constexpr int kMaxDigits = 18;

}  // namespace

std::string json_literal(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Rule GrammarParts::sequence(Sequence sequence) {
  const Rule rule = grammar_.add_rule();
  grammar_.add(rule, std::move(sequence));
  return rule;
}

Rule GrammarParts::literal(std::string_view text) {
  Sequence out;
  grammar_.literal(out, text);
  return sequence(std::move(out));
}

Rule GrammarParts::optional_repeat(Rule what, int times) {
  Rule tail = sequence({});
  for (int i = 0; i < times; ++i) {
    const Rule next = grammar_.add_rule();
    grammar_.add(next, {});
    grammar_.add(next, {ByteGrammar::ref(what), ByteGrammar::ref(tail)});
    tail = next;
  }
  return tail;
}

// Unbounded blanks would let a small model write nothing else.
Rule GrammarParts::gap() {
  if (gap_ >= 0) return gap_;
  const Rule blank = literal(" ");
  const Rule indentation = optional_repeat(blank, kMaxIndentation);
  gap_ = grammar_.add_rule();
  grammar_.add(gap_, {});
  grammar_.add(gap_, {grammar_.byte(' ')});
  grammar_.add(gap_, {grammar_.byte('\n'), ByteGrammar::ref(indentation)});
  return gap_;
}

Rule GrammarParts::lead() {
  if (lead_ >= 0) return lead_;
  ByteSet blanks;
  blanks.set(' ').set('\n');
  lead_ = optional_repeat(sequence({grammar_.bytes(blanks)}), 4);
  return lead_;
}

// One rule for each beginning of a mark that the text may end with.
Rule GrammarParts::text_automaton(std::string_view mark, std::string_view forbidden, std::string_view begun,
                                  bool until) {
  const std::string key = std::string(mark) + '\0' + std::string(forbidden) + '\0' + std::string(begun);
  const auto [known, added] = texts_.emplace(std::pair(key, until), -1);
  if (!added) return known->second;
  std::map<std::string, Rule> states;
  for (const std::string_view one : {mark, forbidden}) {
    for (size_t k = 0; k < one.size(); ++k) {
      if (const std::string start(one.substr(0, k)); !states.contains(start))
        states[start] = grammar_.add_rule();
    }
  }
  for (const auto& [seen, rule] : states) {
    std::map<std::string, ByteSet> to;  // what the text ends with afterwards
    ByteSet last;                       // bytes that complete the mark
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = seen + static_cast<char>(byte);
      if (text.ends_with(mark)) {
        last.set(static_cast<size_t>(byte));
      } else if (forbidden.empty() || !text.ends_with(forbidden)) {
        while (!states.contains(text)) text.erase(0, 1);
        to[text].set(static_cast<size_t>(byte));
      }
    }
    for (const auto& [after, bytes] : to) {
      grammar_.add(rule, {grammar_.bytes(bytes), ByteGrammar::ref(states[after])});
    }
    if (until) {
      if (last.any()) grammar_.add(rule, {grammar_.bytes(last)});
    } else {
      grammar_.add(rule, {});
    }
  }
  known->second = states[std::string(begun)];
  return known->second;
}

Rule GrammarParts::text_until(std::string_view mark, std::string_view forbidden, std::string_view begun) {
  return text_automaton(mark, forbidden, begun, true);
}
Rule GrammarParts::text_without(std::string_view mark) { return text_automaton(mark, {}, {}, false); }

// Well-formed UTF-8 or an escape.
Rule GrammarParts::character() {
  if (character_ >= 0) return character_;
  character_ = grammar_.add_rule();
  ByteSet plain;
  for (size_t c = 0x20; c < 0x7f; ++c) plain.set(c, c != '"' && c != '\\');
  grammar_.add(character_, {grammar_.bytes(plain)});
  const auto tail = grammar_.range(0x80, 0xBF);
  grammar_.add(character_, {grammar_.range(0xC2, 0xDF), tail});
  grammar_.add(character_, {grammar_.byte(0xE0), grammar_.range(0xA0, 0xBF), tail});
  grammar_.add(character_, {grammar_.range(0xE1, 0xEC), tail, tail});
  grammar_.add(character_, {grammar_.byte(0xED), grammar_.range(0x80, 0x9F), tail});
  grammar_.add(character_, {grammar_.range(0xEE, 0xEF), tail, tail});
  grammar_.add(character_, {grammar_.byte(0xF0), grammar_.range(0x90, 0xBF), tail, tail});
  grammar_.add(character_, {grammar_.range(0xF1, 0xF3), tail, tail, tail});
  grammar_.add(character_, {grammar_.byte(0xF4), grammar_.range(0x80, 0x8F), tail, tail});
  ByteSet letters;
  for (const char c : std::string_view("\"\\/bfnrt")) letters.set(static_cast<size_t>(c));
  grammar_.add(character_, {grammar_.byte('\\'), grammar_.bytes(letters)});
  ByteSet hex;
  for (const char c : std::string_view("0123456789abcdefABCDEF")) hex.set(static_cast<size_t>(c));
  const auto h = grammar_.bytes(hex);
  grammar_.add(character_, {grammar_.byte('\\'), grammar_.byte('u'), h, h, h, h});
  return character_;
}

Rule GrammarParts::string_value() {
  if (string_ >= 0) return string_;
  rest_ = grammar_.add_rule();
  grammar_.add(rest_, {grammar_.byte('"')});
  grammar_.add(rest_, {ByteGrammar::ref(character()), ByteGrammar::ref(rest_)});
  string_ = sequence({grammar_.byte('"'), ByteGrammar::ref(rest_)});
  return string_;
}

Rule GrammarParts::bounded_string(int64_t least, std::optional<int64_t> most) {
  string_value();
  Rule tail = most ? literal("\"") : rest_;
  for (int64_t k = most.value_or(least); k > 0; --k) {
    // After this character at least k were written.
    const Rule next = grammar_.add_rule();
    grammar_.add(next, {ByteGrammar::ref(character()), ByteGrammar::ref(tail)});
    if (most && k - 1 >= least) grammar_.add(next, {grammar_.byte('"')});
    tail = next;
  }
  return sequence({grammar_.byte('"'), ByteGrammar::ref(tail)});
}

// ---- Numbers ---------------------------------------------------------------------------------------------

Rule GrammarParts::digits(int least, int most) {
  if (digit_ < 0) digit_ = sequence({grammar_.range('0', '9')});
  Sequence out;
  for (int i = 0; i < least; ++i) out.push_back(ByteGrammar::ref(digit_));
  if (most > least) out.push_back(ByteGrammar::ref(optional_repeat(digit_, most - least)));
  return sequence(std::move(out));
}

Rule GrammarParts::number(bool not_negative) {
  const Rule whole = natural(0, std::nullopt);
  const Rule rule = grammar_.add_rule(), fraction = grammar_.add_rule(), exponent = grammar_.add_rule();
  grammar_.add(fraction, {});
  grammar_.add(fraction, {grammar_.byte('.'), ByteGrammar::ref(digits(1, kMaxDigits))});
  grammar_.add(exponent, {});
  ByteSet e, sign;
  e.set('e').set('E');
  sign.set('+').set('-');
  const Rule power = digits(1, 3);
  grammar_.add(exponent, {grammar_.bytes(e), ByteGrammar::ref(power)});
  grammar_.add(exponent, {grammar_.bytes(e), grammar_.bytes(sign), ByteGrammar::ref(power)});
  grammar_.add(rule, {ByteGrammar::ref(whole), ByteGrammar::ref(fraction), ByteGrammar::ref(exponent)});
  if (!not_negative) {
    grammar_.add(rule, {grammar_.byte('-'), ByteGrammar::ref(whole), ByteGrammar::ref(fraction),
                        ByteGrammar::ref(exponent)});
  }
  return rule;
}

// Texts of digits of one length, from position `from` on: those not below `text`.
Rule GrammarParts::digits_at_least(const std::string& text, size_t from) {
  if (from == text.size()) return sequence({});
  const auto left = static_cast<int>(text.size() - from - 1);
  const Rule rule = grammar_.add_rule();
  grammar_.add(rule, {grammar_.byte(static_cast<uint8_t>(text[from])),
                      ByteGrammar::ref(digits_at_least(text, from + 1))});
  if (text[from] < '9') {
    grammar_.add(rule, {grammar_.range(static_cast<uint8_t>(text[from] + 1), '9'),
                        ByteGrammar::ref(digits(left, left))});
  }
  return rule;
}

Rule GrammarParts::digits_at_most(const std::string& text, size_t from) {
  if (from == text.size()) return sequence({});
  const auto left = static_cast<int>(text.size() - from - 1);
  const Rule rule = grammar_.add_rule();
  grammar_.add(rule, {grammar_.byte(static_cast<uint8_t>(text[from])),
                      ByteGrammar::ref(digits_at_most(text, from + 1))});
  if (text[from] > '0') {
    grammar_.add(rule, {grammar_.range('0', static_cast<uint8_t>(text[from] - 1)),
                        ByteGrammar::ref(digits(left, left))});
  }
  return rule;
}

Rule GrammarParts::digits_between(const std::string& low, const std::string& high, size_t from) {
  if (from == low.size()) return sequence({});
  const char a = low[from], b = high[from];
  const Rule rule = grammar_.add_rule();
  if (a == b) {
    grammar_.add(rule, {grammar_.byte(static_cast<uint8_t>(a)),
                        ByteGrammar::ref(digits_between(low, high, from + 1))});
    return rule;
  }
  const auto left = static_cast<int>(low.size() - from - 1);
  grammar_.add(rule,
               {grammar_.byte(static_cast<uint8_t>(a)), ByteGrammar::ref(digits_at_least(low, from + 1))});
  grammar_.add(rule,
               {grammar_.byte(static_cast<uint8_t>(b)), ByteGrammar::ref(digits_at_most(high, from + 1))});
  if (b - a > 1) {
    grammar_.add(rule, {grammar_.range(static_cast<uint8_t>(a + 1), static_cast<uint8_t>(b - 1)),
                        ByteGrammar::ref(digits(left, left))});
  }
  return rule;
}

// Whole numbers from `low` >= 0; without `high` up to kMaxDigits digits.
Rule GrammarParts::natural(int64_t low, std::optional<int64_t> high) {
  const Rule rule = grammar_.add_rule();
  std::string from = std::to_string(low);
  const std::string to = high ? std::to_string(*high) : std::string(kMaxDigits, '9');
  for (size_t length = from.size(); length <= to.size(); ++length) {
    const std::string last = length == to.size() ? to : std::string(length, '9');
    grammar_.add(rule, {ByteGrammar::ref(digits_between(from, last, 0))});
    from = "1" + std::string(length, '0');
  }
  return rule;
}

Rule GrammarParts::integer(std::optional<int64_t> low, std::optional<int64_t> high) {
  const Rule rule = grammar_.add_rule();
  if (!high || *high >= 0)
    grammar_.add(rule, {ByteGrammar::ref(natural(std::max<int64_t>(0, low.value_or(0)), high))});
  if (!low || *low < 0) {
    const int64_t least = high && *high < 0 ? -*high : 1;
    const auto most = low ? std::optional(-*low) : std::nullopt;
    grammar_.add(rule, {grammar_.byte('-'), ByteGrammar::ref(natural(least, most))});
  }
  return rule;
}

// ---- Values ----------------------------------------------------------------------------------------------

Rule GrammarParts::any_value() {
  if (any_ >= 0) return any_;
  any_ = grammar_.add_rule();
  const Rule value = any_;
  for (const char* word : {"true", "false", "null"}) grammar_.add(value, {ByteGrammar::ref(literal(word))});
  grammar_.add(value, {ByteGrammar::ref(string_value())});
  grammar_.add(value, {ByteGrammar::ref(number(false))});
  const auto g = ByteGrammar::ref(gap());
  const auto comma = grammar_.byte(',');
  const Rule pair =
      sequence({ByteGrammar::ref(string_value()), grammar_.byte(':'), g, ByteGrammar::ref(value)});
  const auto list = [&](Rule element, char open, char close) {
    const Rule more = grammar_.add_rule();
    grammar_.add(more, {g, grammar_.byte(static_cast<uint8_t>(close))});
    grammar_.add(more, {comma, g, ByteGrammar::ref(element), ByteGrammar::ref(more)});
    grammar_.add(value,
                 {grammar_.byte(static_cast<uint8_t>(open)), g, grammar_.byte(static_cast<uint8_t>(close))});
    grammar_.add(value, {grammar_.byte(static_cast<uint8_t>(open)), g, ByteGrammar::ref(element),
                         ByteGrammar::ref(more)});
  };
  list(pair, '{', '}');
  list(value, '[', ']');
  return any_;
}

std::optional<Rule> GrammarParts::format(const std::string& name) {
  const std::string date = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
  const std::string time =
      "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
  if (name == "date") return pattern("^" + date + "$");
  if (name == "time") return pattern("^" + time + "$");
  if (name == "date-time") return pattern("^" + date + "T" + time + "$");
  if (name == "uuid") return pattern("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$");
  return std::nullopt;
}

// ---- Patterns --------------------------------------------------------------------------------------------

// Reads a regular expression into rules. Characters beyond ASCII are sequences of bytes outside classes, and
// a negated class or a dot takes them whole.
class PatternReader {
 public:
  PatternReader(GrammarParts& parts, std::string_view text)
      : parts_(parts), grammar_(parts.grammar_), text_(text) {}

  std::optional<Rule> whole() {
    const bool from_start = take('^');
    const bool to_end = text_.ends_with('$') && !text_.ends_with("\\$");
    if (to_end) text_.remove_suffix(1);
    const Rule body = choice(0);
    if (bad_ || at_ != text_.size()) return std::nullopt;
    Sequence out{grammar_.byte('"')};
    // Without anchors the expression may match anywhere in the string.
    const Rule anything = from_start && to_end ? -1 : any_characters();
    if (!from_start) out.push_back(ByteGrammar::ref(anything));
    out.push_back(ByteGrammar::ref(body));
    if (!to_end) out.push_back(ByteGrammar::ref(anything));
    out.push_back(grammar_.byte('"'));
    return parts_.sequence(std::move(out));
  }

 private:
  static constexpr int kMaxRepeat = 1000;

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  Rule fail() {
    bad_ = true;
    return parts_.sequence({});
  }

  Rule any_characters() {
    const Rule rule = grammar_.add_rule();
    grammar_.add(rule, {});
    grammar_.add(rule, {ByteGrammar::ref(parts_.character()), ByteGrammar::ref(rule)});
    return rule;
  }

  Rule choice(int depth) {
    if (depth > 32 || grammar_.symbols() > 60'000) return fail();
    const Rule rule = grammar_.add_rule();
    do {
      Sequence out;
      while (!bad_ && at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
        const Rule one = atom(depth);
        out.push_back(ByteGrammar::ref(repeated(one)));
      }
      grammar_.add(rule, std::move(out));
    } while (!bad_ && take('|'));
    return rule;
  }

  Rule atom(int depth) {
    const char c = text_[at_++];
    switch (c) {
      case '(': {
        if (take('?') && !take(':')) return fail();
        const Rule inner = choice(depth + 1);
        return take(')') ? inner : fail();
      }
      case '[':
        return character_class();
      case '.':
        return set_rule(ByteSet().set(), true);
      case '\\':
        return escape();
      case '*':
      case '+':
      case '?':
      case '{':
      case '^':
      case '$':
        return fail();
      default:
        return literal_at(at_ - 1);
    }
  }

  // The character that begins at `at`, all its bytes.
  Rule literal_at(size_t at) {
    size_t end = at + 1;
    while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) ++end;
    at_ = end;
    if (end - at > 1) return parts_.literal(text_.substr(at, end - at));
    return set_rule(ByteSet().set(static_cast<unsigned char>(text_[at])), false);
  }

  static std::optional<ByteSet> class_of(char letter) {
    ByteSet set;
    const auto add = [&](char low, char high) {
      for (int c = low; c <= high; ++c) set.set(static_cast<size_t>(c));
    };
    switch (letter | 0x20) {
      case 'd':
        add('0', '9');
        break;
      case 'w':
        add('0', '9');
        add('a', 'z');
        add('A', 'Z');
        add('_', '_');
        break;
      case 's':
        set.set(' ').set('\t').set('\n').set('\r').set('\f').set('\v');
        break;
      default:
        return std::nullopt;
    }
    return set;
  }

  static std::optional<char> control_of(char letter) {
    switch (letter) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      default:
        return std::nullopt;
    }
  }

  Rule escape() {
    if (at_ >= text_.size()) return fail();
    const char c = text_[at_++];
    if (const auto set = class_of(c)) {
      const bool negated = c < 'a';
      return set_rule(negated ? ~*set : *set, negated);
    }
    if (const auto control = control_of(c))
      return set_rule(ByteSet().set(static_cast<size_t>(*control)), false);
    if (std::isalnum(static_cast<unsigned char>(c))) return fail();  // \b, back references, \p
    return set_rule(ByteSet().set(static_cast<unsigned char>(c)), false);
  }

  Rule character_class() {
    const bool negated = take('^');
    ByteSet set;
    bool first = true;
    while (at_ < text_.size() && (text_[at_] != ']' || first)) {
      first = false;
      char low = text_[at_++];
      if (static_cast<unsigned char>(low) >= 0x80) return fail();
      if (low == '\\') {
        if (at_ >= text_.size()) return fail();
        const char letter = text_[at_++];
        if (const auto inner = class_of(letter)) {
          if (letter < 'a') return fail();
          set |= *inner;
          continue;
        }
        const auto control = control_of(letter);
        if (!control && std::isalnum(static_cast<unsigned char>(letter))) return fail();
        low = control.value_or(letter);
      }
      char high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        high = text_[at_ + 1];
        at_ += 2;
        if (high == '\\' && at_ < text_.size()) high = text_[at_++];
        if (high < low) return fail();
      }
      for (int c = low; c <= high; ++c) set.set(static_cast<size_t>(c));
    }
    if (!take(']')) return fail();
    return set_rule(negated ? ~set : set, negated);
  }

  // One character of `set`, as JSON writes it. `beyond`: everything outside ASCII too.
  Rule set_rule(const ByteSet& set, bool beyond) {
    const Rule rule = grammar_.add_rule();
    ByteSet plain;
    for (size_t c = 0x20; c < 0x7f; ++c) plain.set(c, set.test(c) && c != '"' && c != '\\');
    if (plain.any()) grammar_.add(rule, {grammar_.bytes(plain)});
    constexpr std::string_view kSpecial = "\"\\\n\t\r\f", kLetters = "\"\\ntrf";
    for (size_t i = 0; i < kSpecial.size(); ++i) {
      if (!set.test(static_cast<size_t>(kSpecial[i]))) continue;
      grammar_.add(rule, {grammar_.byte('\\'), grammar_.byte(static_cast<uint8_t>(kLetters[i]))});
    }
    if (beyond) {
      const auto tail = grammar_.range(0x80, 0xBF);
      grammar_.add(rule, {grammar_.range(0xC2, 0xDF), tail});
      grammar_.add(rule, {grammar_.range(0xE1, 0xEC), tail, tail});
      grammar_.add(rule, {grammar_.range(0xF1, 0xF3), tail, tail, tail});
    }
    return rule;
  }

  Rule repeated(Rule what) {
    int least = 1, most = 1;
    if (take('*')) {
      least = 0, most = -1;
    } else if (take('+')) {
      most = -1;
    } else if (take('?')) {
      least = 0;
    } else if (take('{')) {
      if (!count(least)) return fail();
      most = least;
      if (take(',')) {
        most = -1;
        if (at_ < text_.size() && text_[at_] != '}' && !count(most)) return fail();
      }
      if (!take('}') || (most >= 0 && most < least)) return fail();
    } else {
      return what;
    }
    take('?');  // laziness changes what is captured, not what matches
    Sequence out(static_cast<size_t>(least), ByteGrammar::ref(what));
    if (most < 0) {
      const Rule more = grammar_.add_rule();
      grammar_.add(more, {});
      grammar_.add(more, {ByteGrammar::ref(what), ByteGrammar::ref(more)});
      out.push_back(ByteGrammar::ref(more));
    } else if (most > least) {
      out.push_back(ByteGrammar::ref(parts_.optional_repeat(what, most - least)));
    }
    return parts_.sequence(std::move(out));
  }

  bool count(int& out) {
    int value = 0;
    size_t digits = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_, ++digits) {
      value = std::min(kMaxRepeat + 1, value * 10 + (text_[at_] - '0'));
    }
    out = value;
    return digits > 0 && value <= kMaxRepeat;
  }

  GrammarParts& parts_;
  ByteGrammar& grammar_;
  std::string_view text_;
  size_t at_ = 0;
  bool bad_ = false;
};

std::optional<Rule> GrammarParts::pattern(const std::string& expression) {
  if (expression.size() > 4096) return std::nullopt;
  return PatternReader(*this, expression).whole();
}

}  // namespace braid::server
