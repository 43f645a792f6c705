#include "cli/bench/logit_quality.h"

#include <gtest/gtest.h>

#include <cmath>

namespace braid {
namespace {

std::vector<float> logits_of(const std::vector<double>& p, double moved) {
  std::vector<float> out;
  for (const double x : p) out.push_back(static_cast<float>(std::log(x) + moved));
  return out;
}

TEST(LogitQuality, IsWhatItsFormulaSays) {
  const std::vector<double> p = {0.5, 0.25, 0.125, 0.125}, q = {0.25, 0.5, 0.125, 0.125};
  LogitQuality quality;
  quality.add(logits_of(p, 3), logits_of(q, -700));
  const LogitSummary out = quality.summary();
  EXPECT_EQ(out.rows, 1);
  EXPECT_NEAR(out.mean, 0.25 * std::log(2.0), 1e-4);  // 1/2 log 2 - 1/4 log 2
  EXPECT_EQ(out.mean, out.median);
  EXPECT_EQ(out.mean, out.most);
  EXPECT_EQ(out.flips, 1);
  EXPECT_EQ(out.clear_flips, 1);
}

TEST(LogitQuality, EqualRowsAreNoDistanceApart) {
  LogitQuality quality;
  for (int i = 0; i < 10; ++i) {
    std::vector<float> row;
    for (int j = 0; j < 1000; ++j)
      row.push_back(static_cast<float>((i * 7919 + j * 104729) % 1000) * 0.01f);
    quality.add(row, row);
  }
  const LogitSummary out = quality.summary();
  EXPECT_EQ(out.rows, 10);
  EXPECT_LT(out.most, 1e-12);
  EXPECT_EQ(out.flips, 0);
}

TEST(LogitQuality, QuantilesAndMargins) {
  LogitQuality quality;
  for (int i = 0; i < 200; ++i) {
    const float margin = i == 0 ? 0.05f : 2.0f;
    const std::vector<float> row = {margin, 0}, turned = {0, margin};
    quality.add(row, i < 3 ? turned : row);
  }
  const LogitSummary out = quality.summary();
  EXPECT_LT(out.median, 1e-12);
  EXPECT_GT(out.p99, 1e-4);  // the third largest of 200
  EXPECT_NEAR(out.flips, 0.015, 1e-12);
  EXPECT_NEAR(out.clear_flips, 2.0 / 199, 1e-12);
}

TEST(LogitQuality, NothingIsNothing) { EXPECT_EQ(LogitQuality().summary().rows, 0); }

}  // namespace
}  // namespace braid
