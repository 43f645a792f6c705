// numbers.cpp -- see numbers.h.
#include "server/api/structured/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <map>
#include <vector>

#include "base/check.h"
#include "server/api/structured/expression.h"

namespace braid::server {

namespace {

using Node = Expression::Node;

constexpr int64_t kMaxDigits = 308;         // before the point: all are in a double's range
constexpr int64_t kMaxRests = 2'000;        // bound of remainders times counted digits
constexpr int64_t kMinCounted = 20;         // digits; if fewer fit, they are not counted
constexpr int64_t kMaxFraction = 100;       // digits after the point
constexpr int64_t kMaxExponentDigits = 18;  // before the point, with an exponent
constexpr int16_t kBoundedDigits = 64;      // before the point, if the bounds have no more
constexpr int16_t kBoundedFraction = 40;
constexpr int64_t kMaxShift = 400;                         // larger exponents exceed a double
constexpr std::string_view kLargest = "7976931348623157";  // digits of 1.7...e308

std::strong_ordering compared(const Decimal& a, const Decimal& b) {
  if (const auto size = a.digits.size() <=> b.digits.size(); size != 0) return size;
  if (const int digits = a.digits.compare(b.digits); digits != 0) return digits <=> 0;
  return a.fraction.compare(b.fraction) <=> 0;
}

Decimal without_zeros(Decimal out) {
  out.digits.erase(0, std::min(out.digits.find_first_not_of('0'), out.digits.size()));
  if (out.digits.empty()) out.digits = "0";
  while (out.fraction.ends_with('0')) out.fraction.pop_back();
  if (out.digits == "0" && out.fraction.empty()) out.negative = false;
  return out;
}

// n / 10^places.
struct Step {
  int64_t n, places;
};

std::optional<Step> step_of(const Decimal& step) {
  const std::string text = step.digits + step.fraction;
  int64_t n = 0;
  for (const char c : text) {
    n = n * 10 + (c - '0');
    if (n > NumberRule::kMaxStep) return std::nullopt;
  }
  if (n == 0) return std::nullopt;
  return Step{n, static_cast<int64_t>(step.fraction.size())};
}

}  // namespace

std::optional<Decimal> Decimal::of(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const std::string text = value.dump();
  Decimal out;
  size_t at = text.starts_with('-') ? 1 : 0;
  out.negative = at > 0;
  const size_t exponent = std::min(text.find_first_of("eE"), text.size());
  const size_t point = std::min(text.find('.'), exponent);
  out.digits = text.substr(at, point - at);
  if (point < exponent) out.fraction = text.substr(point + 1, exponent - point - 1);
  if (out.digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  int64_t shift = 0;
  if (exponent < text.size()) {
    const char* begin = text.data() + exponent + (text[exponent + 1] == '+' ? 2 : 1);
    if (std::from_chars(begin, text.data() + text.size(), shift).ec != std::errc())
      return std::nullopt;
    if (shift > kMaxShift || shift < -kMaxShift) return std::nullopt;
  }
  for (; shift > 0; --shift) {
    out.digits += out.fraction.empty() ? '0' : out.fraction[0];
    if (!out.fraction.empty()) out.fraction.erase(0, 1);
  }
  for (; shift < 0; ++shift) {
    out.fraction.insert(out.fraction.begin(), out.digits.empty() ? '0' : out.digits.back());
    if (!out.digits.empty()) out.digits.pop_back();
  }
  return without_zeros(std::move(out));
}

bool operator<(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  return a.negative ? compared(b, a) < 0 : compared(a, b) < 0;
}

std::optional<bool> is_multiple(const Decimal& value, const Decimal& step) {
  const auto known = step_of(step);
  if (!known) return std::nullopt;
  if (static_cast<int64_t>(value.fraction.size()) > known->places) return false;
  std::string text = value.digits + value.fraction;
  text.append(static_cast<size_t>(known->places) - value.fraction.size(), '0');
  int64_t rest = 0;
  for (const char c : text) rest = (rest * 10 + (c - '0')) % known->n;
  return rest == 0;
}

void NumberRule::at_least(const Decimal& bound, bool exclusive) {
  if (low && (bound < *low || (bound == *low && !exclusive))) return;
  low = bound;
  above_low = exclusive;
}

void NumberRule::at_most(const Decimal& bound, bool exclusive) {
  if (high && (*high < bound || (bound == *high && !exclusive))) return;
  high = bound;
  below_high = exclusive;
}

bool NumberRule::holds(const Decimal& value) const {
  if ((whole && !value.whole()) || (broken && value.whole())) return false;
  if (low && (value < *low || (above_low && value == *low))) return false;
  if (high && (*high < value || (below_high && value == *high))) return false;
  if (excluded.contains(value)) return false;
  return std::all_of(steps.begin(), steps.end(),
                     [&](const Decimal& step) { return is_multiple(value, step).value_or(true); });
}

std::string NumberRule::key() const {
  std::string out = std::string("number ") + (whole ? 'w' : '-') + (broken ? 'b' : '-') +
                    (above_low ? '>' : ' ') + (below_high ? '<' : ' ');
  const auto add = [&](const Decimal& d) {
    out += (d.negative ? " -" : " ") + d.digits + '.' + d.fraction;
  };
  for (const auto& bound : {low, high}) {
    if (bound)
      add(*bound);
    else
      out += " none";
  }
  for (const auto* list : {&steps, &excluded}) {
    out += " |";
    for (const Decimal& d : *list) add(d);
  }
  return out;
}

namespace {

// The state after a prefix of a number.
struct Reading {
  enum class Phase : uint8_t { start, minus, zero, digits, point, fraction };
  Phase phase = Phase::start;
  bool negative = false;
  bool nonzero = false;        // of the fraction
  int16_t count = 0;           // digits before the point, or after it, as far as they matter
  std::vector<int8_t> order;   // against each mark's magnitude so far: -1 below, 1 above
  std::vector<int32_t> rests;  // modulo each step
  auto operator<=>(const Reading&) const = default;
};

class RuleReader {
 public:
  explicit RuleReader(const NumberRule& rule) : rule_(rule) {
    for (const Decimal& step : rule.steps)
      if (const auto known = step_of(step)) steps_.push_back(*known);
    for (const auto& bound : {rule.low, rule.high})
      if (bound) marks_.push_back(*bound);
    marks_.insert(marks_.end(), rule.excluded.begin(), rule.excluded.end());
    for (const Decimal& mark : marks_) {
      most_digits_ = std::max(most_digits_, static_cast<int16_t>(mark.digits.size()));
      most_fraction_ = std::max(most_fraction_, static_cast<int16_t>(mark.fraction.size() + 1));
    }
    for (const Step& step : steps_)
      most_fraction_ = std::max(most_fraction_, static_cast<int16_t>(step.places + 1));
    int64_t rests = 1;
    for (const Step& step : steps_) rests = std::min(rests * step.n, kMaxRests);
    if (const int64_t digits = std::min(kMaxDigits, kMaxRests / rests);
        digits >= kMinCounted || steps_.empty()) {
      counts_ = true;
      if (!steps_.empty()) most_digits_ = std::max(most_digits_, static_cast<int16_t>(digits));
    }
    if (rule.is_free()) most_digits_ = static_cast<int16_t>(kMaxDigits);
    start_.order.assign(marks_.size(), 0);
    start_.rests.assign(steps_.size(), 0);
  }

  const Reading& start() const { return start_; }

  std::optional<Reading> next(Reading at, char c) const {
    using Phase = Reading::Phase;
    const bool digit = c >= '0' && c <= '9';
    switch (at.phase) {
      case Phase::start:
        if (c == '-') {
          at.phase = Phase::minus;
          at.negative = true;
          return at;
        }
        [[fallthrough]];
      case Phase::minus:
        if (!digit) return std::nullopt;
        at.phase = c == '0' ? Phase::zero : Phase::digits;
        return before_point(std::move(at), c);
      case Phase::zero:
      case Phase::digits:
        if (digit && at.phase == Phase::digits) return before_point(std::move(at), c);
        if (c != '.' || rule_.whole) return std::nullopt;
        for (size_t i = 0; i < marks_.size(); ++i) {
          const int8_t known = order(at, i);
          if (known != 0 && !settle(at, i, known)) return std::nullopt;
          if (known == 0) at.order[i] = 0;
        }
        at.phase = Phase::point;
        at.count = 0;
        return at;
      case Phase::point:
      case Phase::fraction:
        return digit ? behind_point(std::move(at), c) : std::nullopt;
    }
    return std::nullopt;
  }

  bool accepts(const Reading& at) const {
    using Phase = Reading::Phase;
    if (at.phase < Phase::zero || at.phase == Phase::point) return false;
    const bool in_fraction = at.phase == Phase::fraction;
    if (rule_.whole && at.negative && at.phase == Phase::zero) return false;
    if (rule_.broken && !at.nonzero) return false;
    for (size_t i = 0; i < marks_.size(); ++i) {
      if (at.order[i] == kSettled) continue;
      // The fraction so far may be shorter than the mark's.
      int order = in_fraction ? at.order[i] : this->order(at, i);
      const bool shorter =
          static_cast<size_t>(in_fraction ? at.count : 0) < marks_[i].fraction.size();
      if (order == 0 && shorter) order = -1;
      if (!fits(at, i, order)) return false;
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      int64_t rest = at.rests[i];
      for (int64_t k = in_fraction ? at.count : 0; k < steps_[i].places; ++k)
        rest = rest * 10 % steps_[i].n;
      if (rest != 0) return false;
    }
    return true;
  }

 private:
  // Further bytes cannot change the comparison with this mark.
  static constexpr int8_t kSettled = 2;

  std::optional<Reading> before_point(Reading at, char c) const {
    const int16_t most = steps_.empty() ? std::max(most_digits_, kBoundedDigits) : most_digits_;
    if (at.count >= most && counts_) return std::nullopt;
    const auto place = static_cast<size_t>(at.count);
    for (size_t i = 0; i < marks_.size(); ++i) {
      const std::string& digits = marks_[i].digits;
      if (at.order[i] == 0 && place < digits.size())
        at.order[i] = static_cast<int8_t>((c > digits[place]) - (c < digits[place]));
      // More digits only increase it.
      const bool larger = place >= digits.size() || (place + 1 == digits.size() && at.order[i] > 0);
      const bool other_side = at.negative != marks_[i].negative && !is_zero(marks_[i]);
      if ((larger || other_side) && !settle(at, i, 1)) return std::nullopt;
    }
    take_step(at, c);
    // Large steps leave the number of digits unbounded: a counter would multiply their states.
    if (counts_ || at.count <= most_digits_) ++at.count;
    return at;
  }

  std::optional<Reading> behind_point(Reading at, char c) const {
    if (at.count >= std::max(most_fraction_, kBoundedFraction)) return std::nullopt;
    const auto place = static_cast<size_t>(at.count);
    for (size_t i = 0; i < marks_.size(); ++i) {
      if (at.order[i] != 0) continue;
      const std::string& fraction = marks_[i].fraction;
      const char other = place < fraction.size() ? fraction[place] : '0';
      if (c != other && !settle(at, i, c > other ? 1 : -1)) return std::nullopt;
    }
    for (const Step& step : steps_)
      if (at.count >= step.places && c != '0') return std::nullopt;
    for (size_t i = 0; i < steps_.size(); ++i)
      if (at.count < steps_[i].places) at.rests[i] = rest(at.rests[i], c, steps_[i]);
    at.nonzero = (at.nonzero || c != '0') && rule_.broken;
    at.phase = Reading::Phase::fraction;
    ++at.count;
    return at;
  }

  // Records the final order against a mark. False if the number breaks the rule.
  bool settle(Reading& at, size_t mark, int order) const {
    if (at.order[mark] == kSettled) return true;
    at.order[mark] = kSettled;
    return fits(at, mark, order);
  }

  static bool is_zero(const Decimal& d) { return d.digits == "0" && d.fraction.empty(); }

  static int32_t rest(int32_t before, char c, const Step& step) {
    return static_cast<int32_t>((int64_t{before} * 10 + (c - '0')) % step.n);
  }
  void take_step(Reading& at, char c) const {
    for (size_t i = 0; i < steps_.size(); ++i) at.rests[i] = rest(at.rests[i], c, steps_[i]);
  }

  // Order of the digits before the point against those of a mark.
  int8_t order(const Reading& at, size_t mark) const {
    const auto size = static_cast<int16_t>(marks_[mark].digits.size());
    if (at.order[mark] == kSettled || at.count == size) return at.order[mark];
    return at.count < size ? -1 : 1;
  }

  // `order`: of the magnitudes, the number's against the mark's.
  bool fits(const Reading& at, size_t mark, int order) const {
    const Decimal& bound = marks_[mark];
    if (at.negative != bound.negative && !(is_zero(bound) && order == 0))
      order = 1;  // the mark has the other sign
    const int signed_order = at.negative ? -order : order;
    const size_t bounds = (rule_.low ? 1 : 0) + (rule_.high ? 1 : 0);
    if (mark >= bounds) return signed_order != 0;
    if (rule_.low && mark == 0) return rule_.above_low ? signed_order > 0 : signed_order >= 0;
    return rule_.below_high ? signed_order < 0 : signed_order <= 0;
  }

  const NumberRule& rule_;
  std::vector<Step> steps_;
  std::vector<Decimal> marks_;  // low, high, excluded
  int16_t most_digits_ = 0, most_fraction_ = 0;
  bool counts_ = false;  // digits before the point
  Reading start_;
};

Node digits(Expression& out, int64_t least, int64_t most) {
  return out.repeat(out.characters({{'0', '9'}}), least, most);
}

// Fractions up to `text` with their point, or nothing.
Node fraction_up_to(Expression& out, std::string_view text) {
  std::vector<Node> options{out.text(text)};
  for (size_t i = 0; i < text.size(); ++i) {
    if (i > 0) options.push_back(out.text(text.substr(0, i)));
    if (text[i] == '0') continue;
    const Node lower = out.characters({{'0', static_cast<char32_t>(text[i] - 1)}});
    options.push_back(
        out.sequence({out.text(text.substr(0, i)), lower, digits(out, 0, kMaxFraction)}));
  }
  return out.optional(out.sequence({out.character('.'), out.choice(std::move(options))}));
}

}  // namespace

std::optional<Automaton> number_automaton(const NumberRule& rule, GrammarBudget& budget) {
  if (rule.contradicts()) return Automaton();
  const Decimal zero;
  const bool not_negative = rule.low == zero && !rule.above_low && !rule.high &&
                            rule.steps.empty() && rule.excluded.empty() && !rule.broken;
  if (!rule.whole && (rule.is_free() || not_negative)) return json_number(not_negative);
  constexpr std::string_view kBytes = "-.0123456789";
  const RuleReader reader(rule);
  std::map<Reading, int32_t> known{{reader.start(), 0}};
  std::vector<const Reading*> readings{&known.begin()->first};
  std::vector<std::array<int32_t, 256>> table;
  std::vector<uint8_t> accepts;
  const auto weight = static_cast<int64_t>(rule.excluded.size() + rule.steps.size());
  for (size_t s = 0; s < readings.size(); ++s) {
    if (!budget.spend(200 + weight * 30)) return std::nullopt;
    table.emplace_back().fill(Automaton::kDead);
    accepts.push_back(reader.accepts(*readings[s]) ? 1 : 0);
    for (const char c : kBytes) {
      const auto next = reader.next(*readings[s], c);
      if (!next) continue;
      const auto [found, added] = known.emplace(*next, static_cast<int32_t>(readings.size()));
      if (added) readings.push_back(&found->first);
      table[s][static_cast<uint8_t>(c)] = found->second;
    }
  }
  return Automaton::from_table(table, accepts, budget);
}

Automaton json_number(bool not_negative) {
  GrammarBudget budget;
  Expression out(budget);
  const auto set = [&](char low, char high) {
    return out.characters({{static_cast<char32_t>(low), static_cast<char32_t>(high)}});
  };
  const Node zero = out.character('0'), e = out.characters({{'e', 'e'}, {'E', 'E'}});
  const Node plus = out.optional(out.character('+')), minus = out.character('-');
  const Node fraction =
      out.optional(out.sequence({out.character('.'), digits(out, 1, kMaxFraction)}));
  const auto whole = [&](int64_t most) {
    return out.choice({zero, out.sequence({set('1', '9'), digits(out, 0, most - 1)})});
  };
  // Readers refuse numbers beyond a double.
  const Node hundreds = out.choice({out.sequence({set('1', '2'), digits(out, 2, 2)}),
                                    out.sequence({out.text("30"), set('0', '7')})});
  const Node magnitude = out.choice({
      out.sequence({whole(kMaxDigits), fraction}),
      out.sequence({whole(kMaxExponentDigits), fraction, e,
                    out.optional(out.characters({{'+', '+'}, {'-', '-'}})), digits(out, 1, 2)}),
      out.sequence({set('0', '9'), fraction, e, minus, set('1', '3'), digits(out, 2, 2)}),
      out.sequence({set('0', '9'), fraction, e, plus, hundreds}),
      out.sequence({out.character('1'), fraction_up_to(out, kLargest), e, plus, out.text("308")}),
  });
  auto made = out.compile(not_negative ? magnitude : out.sequence({out.optional(minus), magnitude}),
                          Expression::Spelling::plain);
  BRAID_CHECK(made.has_value());
  return std::move(*made);
}

}  // namespace braid::server
