// sealed_shares_test.cpp -- every block of every run is read once, and shares are equal.
#include "ops/cuda/attention/sealed_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace braid::cuda {
namespace {

struct Step {
  std::vector<int> blocks;  // of each run
  int shares, most_splits;
};

SealedDeal deal_of(const Step& step) {
  int runs = 0, packed = 0, longest = 0;
  for (const int blocks : step.blocks) {
    runs += blocks > 0 ? 1 : 0;
    packed += packed_places(blocks);
    longest = std::max(longest, blocks);
  }
  return deal_runs(runs, longest, packed, step.shares, step.most_splits);
}

void expect_dealt(const Step& step) {
  const SealedDeal deal = deal_of(step);
  ASSERT_LE((deal.places + deal.length - 1) / deal.length, step.shares);
  int place = 0;
  for (const int blocks : step.blocks) {
    const RunPlaces run = places_of_run(deal, blocks);
    const int start = place + run.lead;
    place += run.places;
    const RunSplits splits = splits_of_run(start, blocks, deal.length);
    ASSERT_LE(splits.count, step.most_splits);
    ASSERT_LE(splits.first_share + splits.count, step.shares);
    int next = 0;
    for (int share = 0; share < step.shares; ++share) {
      const RunPart part = part_of_run(start, blocks, deal.length, share);
      const bool has = part.begin < part.end;
      ASSERT_EQ(has, share >= splits.first_share && share < splits.first_share + splits.count);
      if (!has) continue;
      ASSERT_EQ(part.begin, next);
      next = part.end;
    }
    ASSERT_EQ(next, blocks);
  }
  ASSERT_EQ(place, deal.places);
}

TEST(SealedShares, GiveEveryBlockToOne) {
  expect_dealt({{0}, 128, 63});
  expect_dealt({{1}, 128, 63});
  expect_dealt({{4096, 4096, 4096, 4096}, 128, 63});
  expect_dealt({std::vector<int>(32, 4109), 128, 63});
  expect_dealt({{4096, 1, 0, 2, 8192}, 21, 2});
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    Step step{std::vector<int>(1 + random() % 40), 1 + static_cast<int>(random() % 132),
              2 + static_cast<int>(random() % 62)};
    const bool equal = random() % 4 == 0;
    for (int& blocks : step.blocks) {
      const int most = random() % 3 == 0 ? 8192 : 40;
      blocks = random() % 4 == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(most));
      if (equal) blocks = step.blocks[0];
    }
    expect_dealt(step);
  }
}

TEST(SealedShares, FitTheSequences) {
  // Runs of one length: no share has two items.
  EXPECT_EQ(deal_of({std::vector<int>(4, 4093), 128, 63}).length, 128);
  EXPECT_EQ(deal_of({std::vector<int>(32, 4109), 128, 63}).length, 1028);
  EXPECT_EQ(deal_of({std::vector<int>(128, 1000), 128, 63}).length, 1000);
  // Whole shares would leave more than half of the processors idle.
  EXPECT_LT(deal_of({std::vector<int>(68, 1000), 128, 63}).length, 560);
  std::vector<int> runs(28, 64);
  runs.insert(runs.end(), 4, 4096);
  EXPECT_LE(deal_of({runs, 128, 63}).length, (4 * (4096 + 16) + 28 * 80 + 127) / 128);
}

}  // namespace
}  // namespace braid::cuda
