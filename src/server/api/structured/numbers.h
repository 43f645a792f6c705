// numbers.h -- regular languages of JSON numbers, compared as decimal digits and thus exactly.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "server/api/api_error.h"
#include "server/api/structured/byte_automaton.h"

namespace braid::server {

// -digits.fraction, without leading or trailing zeros. 0 is not negative.
struct Decimal {
  bool negative = false;
  std::string digits = "0";
  std::string fraction;

  // Empty if `value` is not a number, or its magnitude is outside a double's range.
  static std::optional<Decimal> of(const Json& value);
  bool whole() const { return fraction.empty(); }
  bool operator==(const Decimal&) const = default;
};
bool operator<(const Decimal& a, const Decimal& b);
// Whether `value` is a multiple of `step`. Empty if `step` has too many digits.
std::optional<bool> is_multiple(const Decimal& value, const Decimal& step);

struct NumberRule {
  // Maximum of a step as an integer, without its point and zeros.
  static constexpr int64_t kMaxStep = 10'000;

  bool whole = false;   // an integer
  bool broken = false;  // not an integer
  std::optional<Decimal> low, high;
  bool above_low = false, below_high = false;  // bounds are exclusive
  std::set<Decimal> steps;                     // divisors
  std::set<Decimal> excluded;

  void at_least(const Decimal& bound, bool exclusive);
  void at_most(const Decimal& bound, bool exclusive);
  bool contradicts() const {
    return low && high && (*high < *low || (*low == *high && (above_low || below_high)));
  }
  bool is_free() const { return !low && !high && steps.empty() && excluded.empty() && !broken; }
  bool holds(const Decimal& value) const;
  std::string key() const;
};

// JSON numbers in a double's range. Integers have no point. Rules with bounds, steps or exceptions
// allow no exponent, except when only "not negative". Empty if beyond the budget.
std::optional<Automaton> number_automaton(const NumberRule& rule, GrammarBudget& budget);
Automaton json_number(bool not_negative);

}  // namespace braid::server
