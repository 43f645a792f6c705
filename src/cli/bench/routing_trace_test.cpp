// routing_trace_test.cpp
#include "cli/bench/routing_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace braid::cli {
namespace {

TEST(RoutingTrace, HasTheLocalityOfItsCurve) {
  const RoutingShape shape{3, 256, 8, 2, 600};
  const std::vector<int32_t> ids = local_routing(shape, 7);
  ASSERT_EQ(ids.size(), 600u * 3 * 2 * 8);
  for (const double share : {0.125, 0.25, 0.44, 0.66}) {
    const auto slots = static_cast<size_t>(share * shape.experts);
    size_t hits = 0, chosen = 0;
    for (size_t stack = 0; stack < 6; ++stack) {  // a layer's sequence
      std::vector<int32_t> recent;                // the latest first
      for (size_t step = 0; step < 600; ++step) {
        const int32_t* token = ids.data() + (step * 6 + stack) * 8;
        EXPECT_EQ(std::set<int32_t>(token, token + 8).size(), 8u);
        for (int j = 0; j < 8 && step >= 200; ++j, ++chosen) {
          const auto at = std::find(recent.begin(), recent.end(), token[j]);
          hits += at != recent.end() && at - recent.begin() < static_cast<ptrdiff_t>(slots) ? 1 : 0;
        }
        for (int j = 0; j < 8; ++j) {
          recent.erase(std::remove(recent.begin(), recent.end(), token[j]), recent.end());
          recent.insert(recent.begin(), token[j]);
        }
      }
    }
    EXPECT_NEAR(static_cast<double>(hits) / static_cast<double>(chosen), likely_hits(share), 0.03)
        << share;
  }
}

TEST(RoutingTrace, ALocalityIsThatOfTheMostRecentEighth) {
  for (const double locality : {0.13, 0.3, 0.61, 0.75}) {
    RoutingShape shape{1, 256, 8, 1, 1200};
    shape.locality = locality;
    const std::vector<int32_t> ids = local_routing(shape, 3);
    std::vector<int32_t> recent;  // the latest first
    size_t hits = 0, chosen = 0;
    for (size_t step = 0; step < 1200; ++step) {
      const int32_t* token = ids.data() + step * 8;
      for (int j = 0; j < 8 && step >= 200; ++j, ++chosen) {
        const auto at = std::find(recent.begin(), recent.end(), token[j]);
        hits += at - recent.begin() < std::min<ptrdiff_t>(32, std::ssize(recent)) ? 1 : 0;
      }
      for (int j = 0; j < 8; ++j) {
        recent.erase(std::remove(recent.begin(), recent.end(), token[j]), recent.end());
        recent.insert(recent.begin(), token[j]);
      }
    }
    EXPECT_NEAR(static_cast<double>(hits) / static_cast<double>(chosen), locality, 0.05)
        << locality;
  }
}

TEST(RoutingTrace, UniformChoicesUseAllExpertsAlike) {
  const RoutingShape shape{2, 64, 8, 1, 400};
  const std::vector<int32_t> ids = uniform_routing(shape, 3);
  std::vector<int> counts(64);
  for (size_t token = 0; token < ids.size(); token += 8) {
    EXPECT_EQ(std::set<int32_t>(ids.begin() + token, ids.begin() + token + 8).size(), 8u);
    for (size_t j = 0; j < 8; ++j) ++counts[ids[token + j]];
  }
  EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 50);
  EXPECT_LT(*std::max_element(counts.begin(), counts.end()), 150);
}

}  // namespace
}  // namespace braid::cli
