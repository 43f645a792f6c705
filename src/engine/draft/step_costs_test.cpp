// step_costs_test.cpp -- step times from measurements and their neighbors.
#include "engine/draft/step_costs.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(StepCosts, KeepsWhatIsMeasuredAndReadsBetween) {
  StepCosts costs;
  EXPECT_EQ(costs.plain_ms(1), 0);
  for (const double ms : {500, 9}) {
    costs.observe(1, 1, ms);
    EXPECT_EQ(costs.plain_ms(1), 0) << "one may be held up, another lucky";
  }
  costs.observe(1, 1, 10);
  EXPECT_EQ(costs.plain_ms(1), 10);
  EXPECT_EQ(costs.step_ms(1, 5), 10);  // flat until more is measured
  costs.observe(1, 5, 28);
  EXPECT_EQ(costs.step_ms(1, 5), 10) << "one may be a chance";
  costs.observe(1, 5, 14);
  EXPECT_NEAR(costs.step_ms(1, 3), 12, 1e-9);
  EXPECT_NEAR(costs.step_ms(1, 7), 15, 1e-9);  // half the slope beyond
  EXPECT_EQ(costs.most_extra_rows(1), 4);
  EXPECT_EQ(costs.most_extra_rows(2), 0);
  for (int i = 0; i < 5; ++i) costs.observe(1, 3, 9);  // monotonic in rows
  EXPECT_EQ(costs.step_ms(1, 3), 10);
  for (int i = 0; i < 5; ++i) costs.observe(1, 2, 19);  // monotonic in rows
  EXPECT_EQ(costs.step_ms(1, 2), 10);
  EXPECT_EQ(costs.step_ms(1, 1), 10);
  for (const double ms : {12, 12, 90}) costs.observe(1, 5, ms);
  EXPECT_EQ(costs.step_ms(1, 5), 14);
}

TEST(StepCosts, FollowsPlainStepsWithAllRowsAndForgivesHiccups) {
  StepCosts costs;
  for (int i = 0; i < 10; ++i) {
    costs.observe(4, 4, 10);
    costs.observe(4, 8, 13);
  }
  EXPECT_EQ(costs.observe(4, 4, 1000), 12.5);
  EXPECT_NEAR(costs.plain_ms(4), 10.25, 0.01);
  EXPECT_NEAR(costs.step_ms(4, 8), 13.25, 0.01);
  EXPECT_EQ(costs.observe(4, 8, 14), 14);
  EXPECT_NEAR(costs.observe(4, 8, 1000), 1.25 * 13.33, 0.01);
  costs.observe(4, 12, 1000);
  EXPECT_LT(costs.step_ms(4, 12), 36);
  for (int i = 0; i < 5; ++i) costs.observe(4, 4, 50);
  EXPECT_EQ(costs.plain_ms(4), 50);
  EXPECT_GT(costs.step_ms(4, 8), 52);
}

TEST(StepCosts, ANewNumberOfSequencesBeginsAsItsNeighbour) {
  StepCosts costs;
  for (int i = 0; i < 3; ++i) costs.observe(8, 8, 10);
  for (int i = 0; i < 2; ++i) costs.observe(8, 16, 14);
  EXPECT_EQ(costs.plain_ms(12), 0);
  for (int i = 0; i < 3; ++i) costs.observe(12, 12, 11);
  EXPECT_EQ(costs.plain_ms(12), 11);
  EXPECT_NEAR(costs.step_ms(12, 20), 15, 1e-9);
  costs.observe_drafting(8, 4, 2);
  EXPECT_NEAR(costs.drafting_ms(8, 2), 1, 1e-9);
  EXPECT_NEAR(costs.drafting_ms(9, 6), 3, 1e-9);
}

TEST(StepCosts, PlainStepsBetweenMeasuredOnesAreEstimated) {
  StepCosts costs;
  for (int i = 0; i < 3; ++i) costs.observe(4, 4, 10);
  costs.estimate(6);
  EXPECT_EQ(costs.plain_ms(6), 0) << "nothing is known beyond";
  for (int i = 0; i < 3; ++i) costs.observe(8, 8, 14);
  for (int i = 0; i < 2; ++i) costs.observe(8, 16, 20);
  for (int i = 0; i < 3; ++i) costs.observe(64, 64, 40);
  costs.estimate(6);
  EXPECT_EQ(costs.plain_ms(6), 12);
  EXPECT_TRUE(costs.is_estimated(6));
  EXPECT_FALSE(costs.is_estimated(8));
  costs.estimate(7);
  EXPECT_EQ(costs.plain_ms(7), 13);
  EXPECT_NEAR(costs.step_ms(7, 14), 18.25, 1e-9) << "its other rows are the neighbour's";
  for (int i = 0; i < 3; ++i) costs.observe(6, 6, 11);
  EXPECT_EQ(costs.plain_ms(6), 11) << "measured by now";
  EXPECT_FALSE(costs.is_estimated(6));
  StepCosts far;
  for (int i = 0; i < 3; ++i) far.observe(1, 1, 10);
  for (int i = 0; i < 3; ++i) far.observe(64, 64, 40);
  far.estimate(8);
  EXPECT_EQ(far.plain_ms(8), 0);
}

TEST(StepCosts, RowsOfATileCostAlike) {
  const auto in_tiles = [](int32_t rows) { return (rows + 127) / 128 * 128; };
  StepCosts lines, tiles(in_tiles);
  for (StepCosts* costs : {&lines, &tiles}) {
    for (int i = 0; i < 3; ++i) {
      costs->observe(128, 128, 20);
      costs->observe(128, 130, 32);
    }
    EXPECT_NEAR(costs->step_ms(128, 130), 32, 1e-9);
  }
  EXPECT_NEAR(lines.step_ms(128, 256), 50, 1e-9);
  EXPECT_NEAR(tiles.step_ms(128, 256), 32, 1e-9);
  EXPECT_NEAR(tiles.step_ms(128, 384), 38, 1e-9);  // half the slope beyond
  EXPECT_EQ(lines.next_extra_rows(128), 64);
  EXPECT_EQ(tiles.next_extra_rows(128), 128);
  EXPECT_EQ(tiles.next_extra_rows(64), 0) << "nothing is known";
  for (int i = 0; i < 3; ++i) tiles.observe(128, 384, 44);
  EXPECT_NEAR(tiles.step_ms(128, 256), 32, 1e-9);
  EXPECT_NEAR(tiles.step_ms(128, 320), 44, 1e-9);
  StepCosts inside(in_tiles);  // within a tile rows count
  for (int i = 0; i < 3; ++i) inside.observe(32, 32, 10);
  for (int i = 0; i < 3; ++i) inside.observe(32, 64, 12);
  EXPECT_NEAR(inside.step_ms(32, 48), 11, 1e-9);
  EXPECT_NEAR(inside.step_ms(32, 96), 13, 1e-9);
}

TEST(StepCosts, KnowsCatchingUpByItself) {
  StepCosts costs;
  EXPECT_EQ(costs.catch_up_ms(4, 8), 0);
  for (int i = 0; i < 3; ++i) costs.observe(4, 4, 11, 1);
  EXPECT_EQ(costs.plain_ms(4), 10);
  EXPECT_NEAR(costs.catch_up_ms(4, 8), 2, 1e-9);
  EXPECT_EQ(costs.observe(4, 8, 14, 2), 12);
  costs.observe(4, 4, 1010, 1000);  // a delay
  EXPECT_LT(costs.catch_up_ms(4, 4), 2);
  EXPECT_EQ(costs.plain_ms(4), 10);
  EXPECT_EQ(costs.observe_drafting(4, 3, 5), 5);
  EXPECT_EQ(costs.observe_drafting(4, 3, 500), 10);
  for (int i = 0; i < 5; ++i) costs.observe_drafting(4, 3, 5);
  EXPECT_EQ(costs.observe_drafting(4, 3, 500), 6.25);
}

}  // namespace
}  // namespace braid
