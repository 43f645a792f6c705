// member_sets_test.cpp -- member sets against plain sets, and their cost.
#include "server/api/structured/member_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace braid::server {
namespace {

TEST(MemberSets, SayWhatPlainSetsSay) {
  std::mt19937 random(3);
  for (const int32_t size : {1, 2, 63, 64, 65, 128, 129, 700, 1900}) {
    MemberSets sets;
    struct Known {
      int32_t id;
      std::vector<bool> has;
      MemberSets::Mark before;
    };
    std::vector<Known> path{
        {MemberSets::kEmpty, std::vector<bool>(static_cast<size_t>(size)), sets.mark()}};
    for (int round = 0; round < 3000; ++round) {
      Known next = path.back();
      const auto rank = static_cast<int32_t>(random() % static_cast<uint32_t>(size));
      const bool full = std::all_of(next.has.begin(), next.has.end(), [](bool has) { return has; });
      if (full || (path.size() > 1 && random() % 50 == 0)) {  // undo a few
        const size_t keep = 1 + random() % (path.size() - 1);
        sets.rewind_to(path[keep].before);
        path.resize(keep);
        continue;
      }
      if (next.has[static_cast<size_t>(rank)]) continue;
      next.before = sets.mark();
      next.id = sets.with(path.back().id, rank, rank % 3 == 0, size, next.before);
      EXPECT_EQ(sets.with(path.back().id, rank, rank % 3 == 0, size, next.before), next.id);
      next.has[static_cast<size_t>(rank)] = true;
      path.push_back(next);
      int32_t count = 0, required = 0;
      for (int32_t r = 0; r < size; ++r) {
        count += next.has[static_cast<size_t>(r)] ? 1 : 0;
        required += next.has[static_cast<size_t>(r)] && r % 3 == 0 ? 1 : 0;
      }
      ASSERT_EQ(sets.count(next.id), count);
      ASSERT_EQ(sets.required(next.id), required);
      for (int ask = 0; ask < 8; ++ask) {
        const Known& one = path[random() % path.size()];  // earlier sets do not change
        const auto begin = static_cast<int32_t>(random() % static_cast<uint32_t>(size));
        const auto end =
            begin + 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(size - begin));
        ASSERT_EQ(sets.has_all(one.id, begin, end, size),
                  std::all_of(one.has.begin() + begin, one.has.begin() + end,
                              [](bool has) { return has; }));
      }
    }
  }
}

TEST(MemberSets, OfDifferentObjectsAreDifferent) {
  MemberSets sets;
  const MemberSets::Mark since = sets.mark();
  const int32_t small = sets.with(MemberSets::kEmpty, 20, true, 40, since);
  const int32_t large = sets.with(MemberSets::kEmpty, 20, true, 100, since);
  const int32_t free = sets.with(MemberSets::kEmpty, 20, false, 100, since);
  EXPECT_NE(small, large);
  EXPECT_NE(large, free);
  EXPECT_EQ(sets.with(MemberSets::kEmpty, 20, true, 100, since), large);
  EXPECT_FALSE(sets.has_all(large, 0, 100, 100));
  EXPECT_TRUE(sets.has_all(small, 20, 21, 40));
  EXPECT_EQ(sets.required(large), 1);
  EXPECT_EQ(sets.required(free), 0);
}

TEST(MemberSets, CostGrowsWithTheLogarithm) {
  const auto nodes = [](int32_t size) {
    MemberSets sets;
    int32_t set = MemberSets::kEmpty;
    for (int32_t rank = 0; rank < size; ++rank)
      set = sets.with(set, rank, false, size, sets.mark());
    EXPECT_EQ(sets.count(set), size);
    return sets.mark().nodes;
  };
  EXPECT_LE(nodes(64), 64U);
  EXPECT_LE(nodes(2048), 2048U * 6);
  EXPECT_LE(nodes(65536), 65536U * 11);
}

}  // namespace
}  // namespace braid::server
