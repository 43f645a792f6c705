// stage_cuts_test.cpp -- cuts against every possible one.
#include "engine/stage_cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

namespace braid {
namespace {

using Cuts = std::vector<int32_t>;

// Value of a cut; infinity if it does not fit.
double value_of(const TrunkNeeds& needs, std::span<const StageRoom> stages, int64_t blocks,
                CutFor purpose, const Cuts& first) {
  double sum = 0, most = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const size_t end =
        s + 1 < stages.size() ? static_cast<size_t>(first[s + 1]) : needs.layers.size();
    double bytes = 0, read = 0;
    const auto add = [&](const LayerNeeds& n) {
      bytes += static_cast<double>(n.fixed_bytes) +
               static_cast<double>(n.block_bytes) * static_cast<double>(blocks);
      read += static_cast<double>(n.read_bytes);
    };
    for (size_t l = static_cast<size_t>(first[s]); l < end; ++l) add(needs.layers[l]);
    if (s == 0) add(needs.first);
    if (s + 1 == stages.size()) add(needs.last);
    if (bytes > static_cast<double>(stages[s].bytes))
      return std::numeric_limits<double>::infinity();
    sum += read / stages[s].rate;
    most = std::max(most, read / stages[s].rate);
  }
  return purpose == CutFor::one ? sum : most;
}

void for_each_cut(int32_t layers, size_t stages, Cuts& first,
                  const std::function<void(const Cuts&)>& act) {
  if (first.size() == stages) return act(first);
  for (int32_t next = first.back() + 1; next <= layers - 1; ++next) {
    first.push_back(next);
    for_each_cut(layers, stages, first, act);
    first.pop_back();
  }
}

TEST(StageCuts, NoCutIsBetter) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t most) { return random() % most; };
  int fitting = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    TrunkNeeds needs;
    needs.layers.resize(2 + below(10));
    for (LayerNeeds& l : needs.layers) {
      l = {below(100), below(2) * below(10), 0};
      l.read_bytes = l.fixed_bytes / (1 + below(3));
    }
    needs.first = {below(100), 0, 0};
    needs.last = {below(100), below(3), below(100)};
    std::vector<StageRoom> stages(
        1 + below(static_cast<uint32_t>(std::min<size_t>(4, needs.layers.size()))));
    for (StageRoom& s : stages) s = {100 + below(1000), 1.0 + below(4)};
    const int64_t blocks = below(20);
    for (const CutFor purpose : {CutFor::one, CutFor::many}) {
      double least = std::numeric_limits<double>::infinity();
      Cuts first = {0};
      for_each_cut(static_cast<int32_t>(needs.layers.size()), stages.size(), first,
                   [&](const Cuts& cut) {
                     least = std::min(least, value_of(needs, stages, blocks, purpose, cut));
                   });
      const auto found = cut_trunk(needs, stages, blocks, purpose);
      ++(found ? fitting : refused);
      ASSERT_EQ(found.has_value(), least < std::numeric_limits<double>::infinity()) << round;
      if (found) {
        EXPECT_NEAR(value_of(needs, stages, blocks, purpose, *found), least, 1e-9) << round;
      }
    }
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(refused, 100);
}

TEST(StageCuts, SharesDealAllLayers) {
  EXPECT_EQ(cut_by_shares(64, std::vector<double>{3, 1}), (Cuts{0, 48}));
  EXPECT_EQ(cut_by_shares(8, std::vector<double>{1, 1, 1}), (Cuts{0, 3, 5}));
  EXPECT_EQ(cut_by_shares(3, std::vector<double>{1000, 1, 1}), (Cuts{0, 1, 2})) << "one each";
  EXPECT_EQ(cut_by_shares(4, std::vector<double>{0, 1}), (Cuts{0, 1}));
}

}  // namespace
}  // namespace braid
