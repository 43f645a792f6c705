// keep_curve.h -- the share of a prompt that compression keeps, by the length of the prompt.
//
// Texts of a curve:
//   auto                     kAutoRatios at every length: code gets more than prose
//   0.05                     one ratio at every length
//   10000:0.5, 40000:0.2     breakpoints tokens:ratio, separated by blanks or commas
// Between breakpoints the ratio is linear in the number of tokens; outside it is constant. A ratio
// that a user wrote holds for code as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace braid {

// Shares of the chunks, above 0 and at most 1.
struct KeepRatios {
  double prose = 1;
  double code = 1;

  bool operator==(const KeepRatios&) const = default;
};

// Published gates for finding one fact: a tenth of prose is enough, code needs three tenths.
inline constexpr KeepRatios kAutoRatios{.prose = 0.10, .code = 0.30};

class KeepCurve {
 public:
  static constexpr size_t kMostPoints = 64;
  static constexpr uint64_t kMostTokens = 1'000'000'000;

  KeepCurve() : KeepCurve(kAutoRatios) {}
  // Error: invalid_argument, with one sentence.
  static Result<KeepCurve> parse(std::string_view text);

  KeepRatios at(uint64_t prompt_tokens) const;
  // The same for equal curves: tokens:prose:code, separated by blanks.
  std::string canonical() const;

 private:
  struct Point {
    uint64_t tokens;
    KeepRatios ratios;
  };

  explicit KeepCurve(const KeepRatios& flat) : points_{{0, flat}} {}
  explicit KeepCurve(std::vector<Point> points) : points_(std::move(points)) {}

  std::vector<Point> points_;  // at least one; tokens strictly increase
};

}  // namespace braid
