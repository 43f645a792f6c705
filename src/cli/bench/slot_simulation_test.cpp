// slot_simulation_test.cpp -- what expert slots hold over a trace.
#include "cli/bench/slot_simulation.h"

#include <gtest/gtest.h>

#include <vector>

#include "cli/bench/routing_trace.h"

namespace braid::cli {
namespace {

TEST(SlotSimulation, CountsWhatIsReadAndKept) {
  // The slot holds 0. Its score is 1.875 after four tokens and halves with each. So 3 passes by
  // when it comes once, with a score of 1, and takes the slot when it comes again. Then 0 takes it
  // back.
  const std::vector<int32_t> ids = {0, 0, 0, 0, 3, 3, 3, 0};
  const SlotCounts all = simulate_slots(ids, 1, 4, 1, 0);
  EXPECT_EQ(all.chosen, 8);
  EXPECT_EQ(all.hits(), 5);
  EXPECT_EQ(all.kept, 2);
  EXPECT_EQ(all.passed_by, 1);
  const SlotCounts later = simulate_slots(ids, 1, 4, 1, 4);
  EXPECT_EQ(later.chosen, 4);
  EXPECT_EQ(later.hits(), 1);
  EXPECT_EQ(later.kept, 2);
  EXPECT_EQ(later.passed_by, 1);
  EXPECT_EQ(simulate_slots(ids, 1, 4, 4, 0).hits(), 8);
}

TEST(SlotSimulation, LocalRoutingIsServedFarBetterThanUniform) {
  const RoutingShape shape{1, 256, 8, 1, 1000};
  const std::vector<int32_t> local = local_routing(shape, 1), uniform = uniform_routing(shape, 1);
  double before = 0;
  for (const int32_t slots : {32, 64, 128}) {
    const auto hits = [&](const std::vector<int32_t>& ids) {
      const SlotCounts counts = simulate_slots(ids, 8, 256, slots, 64);
      EXPECT_EQ(counts.chosen, 936 * 8);
      return static_cast<double>(counts.hits()) / static_cast<double>(counts.chosen);
    };
    EXPECT_NEAR(hits(uniform), slots / 256.0, 0.03) << slots;
    EXPECT_GT(hits(local), likely_hits(slots / 256.0) - 0.05) << slots;
    EXPECT_GT(hits(local), before) << slots;
    before = hits(local);
  }
}

}  // namespace
}  // namespace braid::cli
