// loop_detector.h -- does a text end in a loop? Of tokens: their ids alone decide.
//
// A loop is a pattern that the text ends with several times in a row, without a difference. Legal texts hold
// such runs too: rows of zeros, lines of a log, refrains. What tells them apart is their length, and legal
// ones are longest where the pattern holds few different tokens. So a rule asks for a number of copies, for
// tokens that they cover together, and for many more where the pattern is plain.
// Copies that differ (a number that grows) are no loop here.
//
// The answer depends on the last LoopRule::window() tokens alone, so there is nothing to undo when tokens
// are taken back. Work per look: at most a few steps for each of those tokens; usually one for each period.
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
  int32_t covered_tokens = 1024;              // by all copies together, at least
  // The same for patterns of at most plain_kinds different tokens.
  int32_t plain_kinds = 8;
  int32_t plain_covered_tokens = 2048;
  int32_t every_tokens = 64;  // the end of the text is looked at when its length is a multiple of this

  int32_t window() const;  // tokens at the end of a text that decide
};

// Of thoughts. In 99 MB of documentation and sources nothing repeats half as long (bench/loop_corpus.cpp).
inline constexpr LoopRule kThoughtLoops{
    .copies = 4, .covered_tokens = 1024, .plain_kinds = 8, .plain_covered_tokens = 2048};
// Of visible answers, which may be asked for repetition: longer runs, more copies.
inline constexpr LoopRule kAnswerLoops{
    .copies = 8, .covered_tokens = 2048, .plain_kinds = 8, .plain_covered_tokens = 8192};

struct Loop {
  int32_t period_tokens = 0;   // of the pattern, the shortest one
  int32_t covered_tokens = 0;  // as far as the rule asks for
};

class LoopDetector {
 public:
  explicit LoopDetector(const LoopRule& rule);

  const LoopRule& rule() const { return rule_; }
  // Whether a text of this length is looked at: a loop is found at such places only.
  bool looks_at(size_t tokens) const { return tokens % static_cast<size_t>(rule_.every_tokens) == 0; }
  // The loop that `text` ends with. Nothing where looks_at(text.size()) is false.
  std::optional<Loop> find(std::span<const int32_t> text);

 private:
  LoopRule rule_;
  std::vector<int32_t> matched_;  // of each period: tokens at the end that equal those one period before
};

}  // namespace braid
