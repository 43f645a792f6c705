// loop_detector.cpp -- see loop_detector.h.
#include "text/loop_detector.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace braid {
namespace {

bool is_plain(std::span<const int32_t> pattern, int32_t kinds) {
  std::array<int32_t, 32> known;
  size_t count = 0;
  for (const int32_t id : pattern) {
    const auto end = known.begin() + static_cast<ptrdiff_t>(count);
    if (std::find(known.begin(), end, id) != end) continue;
    if (count == static_cast<size_t>(kinds)) return false;
    known[count++] = id;
  }
  return true;
}

}  // namespace

int32_t LoopRule::window() const {
  return std::max({copies * max_period, covered_tokens, plain_covered_tokens});
}

LoopDetector::LoopDetector(const LoopRule& rule)
    : rule_(rule), matched_(static_cast<size_t>(rule.max_period) + 1) {
  BRAID_CHECK(rule.min_period >= 1 && rule.max_period >= rule.min_period && rule.copies >= 2);
  BRAID_CHECK(rule.every_tokens >= 1 && rule.plain_kinds >= 0 && rule.plain_kinds < 32);
}

// The Z function of the reversed text gives matched_[p] of all periods in linear time, by reusing
// the earlier match that reaches farthest back.
std::optional<Loop> LoopDetector::find(std::span<const int32_t> text) {
  if (!looks_at(text.size())) return std::nullopt;
  text = text.last(std::min(text.size(), static_cast<size_t>(rule_.window())));
  const auto length = static_cast<int32_t>(text.size());
  const int32_t* last = text.data() + length - 1;  // last[-i]: the token i places before the end
  const int32_t periods = std::min(rule_.max_period, length / rule_.copies);
  int32_t known_from = 0, known_to = 0;  // the match that reaches farthest back
  int32_t plain_to = 0;                  // up to here all tokens are of a plain pattern
  for (int32_t p = 1; p <= periods; ++p) {
    int32_t matched = 0;
    if (p < known_to)
      matched = std::min(known_to - p, matched_[static_cast<size_t>(p - known_from)]);
    if (p + matched >= known_to) {
      while (p + matched < length && last[-matched] == last[-(p + matched)]) ++matched;
      known_from = p;
      known_to = p + matched;
    }
    matched_[static_cast<size_t>(p)] = matched;
    const int32_t covered = p + matched;
    if (p < rule_.min_period || covered < std::max(rule_.copies * p, rule_.covered_tokens))
      continue;
    if (covered < rule_.plain_covered_tokens) {
      if (p > plain_to && is_plain(text.last(static_cast<size_t>(p)), rule_.plain_kinds))
        plain_to = covered;
      if (p <= plain_to) continue;
    }
    return Loop{p, covered};
  }
  return std::nullopt;
}

}  // namespace braid
