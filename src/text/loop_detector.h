// loop_detector.h -- detects a loop at the end of a text, by token ids alone.
// A loop repeats a pattern without a difference. Legal texts repeat too (zeros, log lines,
// refrains), longest for patterns of few different tokens. So a rule demands a number of copies and
// of covered tokens, and more tokens for plain patterns.
// Only the last LoopRule::window() tokens matter, so tokens can be taken back. A check costs at
// most a few steps per such token, usually one per period.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace braid {

struct LoopRule {
  int32_t min_period = 1, max_period = 2048;  // tokens of the pattern; 1 or more
  int32_t copies = 4;                         // 2 or more
  int32_t covered_tokens = 1024;              // minimum over all copies
  // For patterns of at most plain_kinds different tokens.
  int32_t plain_kinds = 8;
  int32_t plain_covered_tokens = 2048;
  int32_t every_tokens = 64;  // checks happen at lengths that are multiples of this

  int32_t window() const;  // tokens at the end of a text that decide
};

// For thoughts. In 99 MB of text and code no repetition is half as long (bench/loop_corpus.cpp).
inline constexpr LoopRule kThoughtLoops{
    .copies = 4, .covered_tokens = 1024, .plain_kinds = 8, .plain_covered_tokens = 2048};
// For visible answers, where a user may ask for repetition.
inline constexpr LoopRule kAnswerLoops{
    .copies = 8, .covered_tokens = 2048, .plain_kinds = 8, .plain_covered_tokens = 8192};

struct Loop {
  int32_t period_tokens = 0;   // the shortest one
  int32_t covered_tokens = 0;  // as far as the rule demands
};

class LoopDetector {
 public:
  explicit LoopDetector(const LoopRule& rule);

  const LoopRule& rule() const { return rule_; }
  // Loops are checked and found only at these lengths.
  bool looks_at(size_t tokens) const {
    return tokens % static_cast<size_t>(rule_.every_tokens) == 0;
  }
  // The loop at the end of `text`. Empty where looks_at(text.size()) is false.
  std::optional<Loop> find(std::span<const int32_t> text);

 private:
  LoopRule rule_;
  // per period: tokens at the end that equal those one period earlier
  std::vector<int32_t> matched_;
};

}  // namespace braid
