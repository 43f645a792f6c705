// chunk_scores_test.cpp -- smoothing and means against their definition; broken scores.
#include "text/compress/chunk_scores.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <random>

namespace braid {
namespace {

std::vector<float> random_scores(size_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0, 1);
  std::vector<float> out(tokens);
  for (float& score : out) score = std::pow(uniform(random), 8.0f);
  return out;
}

double pooled(const std::vector<float>& scores, size_t at) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const size_t distance = i > at ? i - at : at - i;
    if (distance > kPoolTokens / 2) continue;
    sum += static_cast<double>(scores[i]);
    count += 1;
  }
  return sum / count;
}

TEST(ChunkScores, AreMeansOfPooledScores) {
  for (const size_t tokens : {1, 2, 6, 7, 12, 13, 14, 31, 32, 33, 64, 500, 1000}) {
    const auto scores = random_scores(tokens, static_cast<uint32_t>(tokens));
    const auto smooth = smoothed_scores(scores);
    ASSERT_EQ(smooth.size(), tokens);
    const auto chunks = chunk_scores(scores);
    ASSERT_EQ(chunks.size(), (tokens + 31) / 32);
    for (size_t k = 0; k < chunks.size(); ++k) {
      double sum = 0, count = 0;
      for (size_t i = k * 32; i < std::min(tokens, k * 32 + 32); ++i) {
        const double expected = pooled(scores, i);
        EXPECT_NEAR(static_cast<double>(smooth[i]), expected, 1e-6 * expected);
        sum += expected;
        count += 1;
      }
      EXPECT_NEAR(static_cast<double>(chunks[k]), sum / count, 1e-6 * sum / count);
    }
  }
  EXPECT_TRUE(chunk_scores({}).empty());
}

TEST(ChunkScores, ABrokenScoreCountsAsTheLowest) {
  for (const float broken : {NAN, -NAN, INFINITY, -INFINITY}) {
    auto scores = random_scores(200, 3);
    scores[17] = 1e-9f;  // the lowest
    auto expected = scores;
    for (const size_t i : {0, 40, 41, 199}) {
      scores[i] = broken;
      expected[i] = 1e-9f;
    }
    EXPECT_EQ(chunk_scores(scores), chunk_scores(expected));
    EXPECT_EQ(chunk_scores(std::vector<float>(70, broken)), std::vector<float>(3, 0.0f));
  }
}

TEST(ChunkScores, LargeScoresNeitherOverflowNorHideSmallOnes) {
  std::vector<float> scores(320, 1e-6f);
  for (size_t i = 0; i < 32; ++i) scores[i] = FLT_MAX;
  scores[200] = 1e-3f;
  const auto chunks = chunk_scores(scores);
  for (const float chunk : chunks) EXPECT_TRUE(std::isfinite(chunk));
  EXPECT_GT(chunks[6], chunks[5]);
  EXPECT_NEAR(chunks[9], 1e-6f, 1e-9f);
}

}  // namespace
}  // namespace braid
