// loop_detector_test.cpp -- which texts are loops, and the cost of checks.
#include "text/loop_detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace braid {
namespace {

using Tokens = std::vector<int32_t>;

Tokens prose(int count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Tokens out;
  for (int i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(random() % 100'000) + 1000);
  return out;
}
Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Tokens times(const Tokens& pattern, int count) {
  Tokens out;
  for (int i = 0; i < count; ++i) out.insert(out.end(), pattern.begin(), pattern.end());
  return out;
}

struct Found {
  size_t at = 0;  // tokens up to there
  Loop loop;
};
std::optional<Found> first_loop(const Tokens& text, const LoopRule& rule = {}) {
  LoopDetector detector(rule);
  for (size_t n = 1; n <= text.size(); ++n) {
    if (const auto loop = detector.find({text.data(), n})) return Found{n, *loop};
  }
  return std::nullopt;
}

TEST(LoopDetector, ALoopIsFoundAtItsPlaceWhateverItsPeriod) {
  for (const int period : {9, 10, 37, 64, 129, 500, 1104, 2048}) {
    const auto found = first_loop(prose(777) + times(prose(period, 2), 8 + 2048 / period));
    ASSERT_TRUE(found) << period;
    EXPECT_EQ(found->loop.period_tokens, period);
    const size_t due = 777 + static_cast<size_t>(std::max(4 * period, 1024));
    EXPECT_GE(found->at, due);
    EXPECT_LT(found->at, due + 64) << period;
  }
  EXPECT_FALSE(first_loop(prose(777) + times(prose(2049, 2), 9))) << "longer than any pattern";
  EXPECT_FALSE(first_loop(times(prose(500, 2), 3) + prose(700)));
}

TEST(LoopDetector, APlainPatternMayRunLonger) {
  for (const int period : {1, 2, 8}) {
    const Tokens pattern = prose(period, 3);
    const auto found = first_loop(prose(100) + times(pattern, 4000));
    ASSERT_TRUE(found) << period;
    EXPECT_EQ(found->loop.period_tokens, period);
    EXPECT_GE(found->at, 100u + 2048);
    EXPECT_LT(found->at, 100u + 2048 + 64);
  }
  Tokens row = times({1, 2}, 30);
  row.push_back(3);
  EXPECT_FALSE(first_loop(prose(100) + times(row, 30) + prose(100)));
  EXPECT_TRUE(first_loop(prose(100) + times(row, 40)));
  const Tokens block = prose(200, 4) + times({7}, 1100);
  const auto found = first_loop(prose(50) + times(block, 8));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->loop.period_tokens, 1300);
  EXPECT_LT(found->at, 50u + 5200 + 64);
}

TEST(LoopDetector, CopiesThatDifferAreNoLoop) {
  Tokens text = prose(100);
  for (int i = 0; i < 300; ++i) text = std::move(text) + Tokens{5, 6, 10'000 + i} + prose(20, 9);
  EXPECT_FALSE(first_loop(text)) << "a list whose numbers grow";
}

TEST(LoopDetector, SaysWhatTryingEveryPeriodSays) {
  const auto slow = [](const Tokens& text, const LoopRule& rule) -> std::optional<Loop> {
    if (text.size() % static_cast<size_t>(rule.every_tokens) != 0) return std::nullopt;
    const auto length = static_cast<int32_t>(text.size());
    for (int32_t p = rule.min_period; p <= std::min(rule.max_period, length); ++p) {
      int32_t covered = p;
      const int32_t last = length - 1;
      while (covered < std::min(length, rule.window()) &&
             text[static_cast<size_t>(last - covered)] ==
                 text[static_cast<size_t>(last - covered + p)])
        ++covered;
      std::vector<int32_t> kinds(text.end() - p, text.end());
      std::sort(kinds.begin(), kinds.end());
      kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
      const bool plain = static_cast<int32_t>(kinds.size()) <= rule.plain_kinds;
      const int32_t least = plain ? rule.plain_covered_tokens : rule.covered_tokens;
      if (covered >= std::max(least, rule.copies * p)) return Loop{p, covered};
    }
    return std::nullopt;
  };
  std::mt19937 random(7);
  int loops = 0;
  for (int round = 0; round < 3000; ++round) {
    LoopRule rule;
    rule.every_tokens = 1 + static_cast<int32_t>(random() % 3);
    rule.max_period = 1 + static_cast<int32_t>(random() % 24);
    rule.min_period = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(rule.max_period));
    rule.copies = 2 + static_cast<int32_t>(random() % 4);
    rule.covered_tokens = static_cast<int32_t>(random() % 40);
    rule.plain_kinds = static_cast<int32_t>(random() % 4);
    rule.plain_covered_tokens = rule.covered_tokens + static_cast<int32_t>(random() % 60);
    LoopDetector detector(rule);
    Tokens text;
    while (text.size() < 200) {  // few kinds of tokens, repeated parts: many different periods
      Tokens part;
      for (uint32_t i = 0; i < 1 + random() % 12; ++i)
        part.push_back(static_cast<int32_t>(random() % 3));
      for (const int32_t id : times(part, 1 + static_cast<int>(random() % 9))) {
        text.push_back(id);
        const auto fast = detector.find(text);
        const auto sure = slow(text, rule);
        ASSERT_EQ(fast.has_value(), sure.has_value()) << round << " at " << text.size();
        if (!fast) continue;
        ++loops;
        ASSERT_EQ(fast->period_tokens, sure->period_tokens) << round << " at " << text.size();
        ASSERT_EQ(fast->covered_tokens, sure->covered_tokens) << round << " at " << text.size();
      }
    }
  }
  EXPECT_GT(loops, 10'000);
}

TEST(LoopDetector, TokensThatWereTakenBackLeaveNothing) {
  LoopDetector detector({});
  const Tokens loop = prose(64, 5);
  Tokens text = times(loop, 20);
  ASSERT_TRUE(detector.find(text));
  text.resize(640);
  EXPECT_FALSE(detector.find(text));
  EXPECT_FALSE(detector.find(text + prose(640, 6)));
  EXPECT_TRUE(detector.find(text + times(loop, 10)));
  const Tokens far = prose(99'968) + times(loop, 16);
  const Tokens near = prose(4'992, 8) + times(loop, 16);
  EXPECT_TRUE(detector.find(far));
  EXPECT_TRUE(detector.find(near));
}

}  // namespace
}  // namespace braid
