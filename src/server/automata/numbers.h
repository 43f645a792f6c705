// numbers.h -- numbers as they are written, and regular languages of them: ranges, multiples.
//
// Values are compared digit by digit, never as floating point: any size, any number of decimals.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "server/api/api_error.h"
#include "server/automata/byte_automaton.h"

namespace braid::server {

// -digits.fraction, without zeros in front of the digits or behind the fraction; 0 is not negative.
struct Decimal {
  bool negative = false;
  std::string digits = "0";
  std::string fraction;

  // Of a JSON number. Empty: it is none, or farther from zero or nearer to it than any double.
  static std::optional<Decimal> of(const Json& value);
  bool whole() const { return fraction.empty(); }
  bool operator==(const Decimal&) const = default;
};
bool operator<(const Decimal& a, const Decimal& b);
// `value` is a whole number of times `step`. Empty: `step` has too many digits to tell.
std::optional<bool> is_multiple(const Decimal& value, const Decimal& step);

// What a number must be.
struct NumberRule {
  // More than this of a step without its point and zeros cannot be asked for.
  static constexpr int64_t kMaxStep = 10'000;

  bool whole = false;   // an integer
  bool broken = false;  // none
  std::optional<Decimal> low, high;
  bool above_low = false, below_high = false;  // the bounds themselves are not in
  std::set<Decimal> steps;                     // a multiple of each
  std::set<Decimal> excluded;

  void at_least(const Decimal& bound, bool exclusive);
  void at_most(const Decimal& bound, bool exclusive);
  // No number at all.
  bool contradicts() const {
    return low && high && (*high < *low || (*low == *high && (above_low || below_high)));
  }
  bool is_free() const { return !low && !high && steps.empty() && excluded.empty() && !broken; }
  bool holds(const Decimal& value) const;
  std::string key() const;
};

// Numbers as JSON writes them, whose value a double holds. Integers have no point. Empty: beyond the budget.
// Those with bounds, steps or exceptions are written without exponent, unless all that is asked is not to be
// negative.
std::optional<Automaton> number_automaton(const NumberRule& rule, GrammarBudget& budget);
// All of them, or all that are not negative.
Automaton json_number(bool not_negative);

}  // namespace braid::server
