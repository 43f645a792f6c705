// sealed_shares_test.cpp -- every block of every run is read once, by the splits that who merges expects, and
// shares are equal.
#include "ops/cuda/attention/sealed_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace braid::cuda {
namespace {

struct Step {
  std::vector<int> blocks;  // of each run
  int shares, most_shares, most_splits;
};

void expect_dealt(const Step& step) {
  std::vector<int> starts;
  int places = 0, longest = 0;
  for (const int blocks : step.blocks) {
    starts.push_back(places);
    places += run_places(blocks);
    longest = std::max(longest, blocks);
  }
  const int length = share_length(places, step.shares, step.most_shares, longest, step.most_splits);
  ASSERT_LE((places + length - 1) / length, step.most_shares);
  for (size_t r = 0; r < step.blocks.size(); ++r) {
    const RunSplits splits = splits_of_run(starts[r], step.blocks[r], length);
    ASSERT_LE(splits.count, step.most_splits);
    ASSERT_LE(splits.first_share + splits.count, step.most_shares);
    int next = 0;
    for (int share = 0; share < step.most_shares; ++share) {
      const RunPart part = part_of_run(starts[r], step.blocks[r], length, share);
      const bool has = part.begin < part.end;
      ASSERT_EQ(has, share >= splits.first_share && share < splits.first_share + splits.count);
      if (!has) continue;
      ASSERT_EQ(part.begin, next);
      next = part.end;
    }
    ASSERT_EQ(next, step.blocks[r]);
  }
}

TEST(SealedShares, GiveEveryBlockToOne) {
  expect_dealt({{0}, 128, 132, 63});
  expect_dealt({{1}, 128, 132, 63});
  expect_dealt({{4096, 4096, 4096, 4096}, 128, 132, 63});
  expect_dealt({std::vector<int>(32, 4109), 128, 132, 63});
  expect_dealt({{4096, 1, 0, 2, 8192}, 21, 22, 2});
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    const int shares = 1 + static_cast<int>(random() % 132);
    Step step{std::vector<int>(1 + random() % 40), shares, shares + static_cast<int>(random() % 5),
              2 + static_cast<int>(random() % 62)};
    for (int& blocks : step.blocks) {
      const int most = random() % 3 == 0 ? 8192 : 40;
      blocks = random() % 4 == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(most));
    }
    expect_dealt(step);
  }
}

// A long sequence among short ones is read by all.
TEST(SealedShares, OneLongRunIsSharedByAll) {
  std::vector<int> runs(28, 64);
  runs.insert(runs.end(), 4, 4096);
  int places = 0;
  for (const int blocks : runs) places += run_places(blocks);
  const int length = share_length(places, 128, 132, 4096, 63);
  EXPECT_LE(length, (places + 127) / 128);
  EXPECT_GE(splits_of_run(places - run_places(4096), 4096, length).count, 27);
}

}  // namespace
}  // namespace braid::cuda
