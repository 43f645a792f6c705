// block_pool_test.cpp -- random operations on block pool and slot pool, each followed by check().
#include "engine/prefix/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/heap_test.h"
#include "engine/prefix/state_slots.h"

namespace braid {
namespace {

TEST(BlockPool, TheBytesOfItsBooksAreForeseen) {
  constexpr int32_t kBlocks = 20000;
  const uint64_t before = heap_bytes();
  if (before == 0) GTEST_SKIP() << "a heap that is not counted";
  BlockPool pool(kBlocks);
  BlockTable table;
  table.reserve(kBlocks);
  ASSERT_TRUE(pool.grow(table, int64_t{kBlocks} * kBlockTokens));
  const std::vector<int32_t> tokens(kBlockTokens);
  PrefixHash hash;
  for (const int32_t block : table) {
    hash = chain_hash(hash, tokens);
    pool.publish(block, hash, tokens.data());
  }
  const auto taken = static_cast<double>(heap_bytes() - before) - kBlocks * sizeof(int32_t);
  EXPECT_NEAR(taken, static_cast<double>(BlockPool::bytes(kBlocks)), 0.03 * taken);
}

TEST(BlockPool, RandomProgramsBalance) {
  std::mt19937 random(11);
  BlockPool pool(40);
  std::vector<BlockTable> tables(8);
  std::vector<int64_t> tokens(8, 0);
  std::vector<const BlockTable*> all;
  for (const BlockTable& t : tables) all.push_back(&t);
  int refused = 0;
  for (int step = 0; step < 20000; ++step) {
    const size_t i = random() % tables.size();
    switch (random() % 4) {
      case 0: {
        const int64_t wanted = tokens[i] + static_cast<int64_t>(random() % 300);
        const BlockTable before = tables[i];
        const int32_t free_before = pool.free();
        if (pool.grow(tables[i], wanted)) {
          tokens[i] = wanted;
          ASSERT_EQ(static_cast<int64_t>(tables[i].size()),
                    std::max<int64_t>(blocks_for(wanted), before.size()));
        } else {
          ++refused;
          ASSERT_EQ(tables[i], before);
          ASSERT_EQ(pool.free(), free_before);
        }
        break;
      }
      case 1:
        tokens[i] = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens[i] + 1));
        pool.truncate(tables[i], tokens[i]);
        break;
      case 2:
        pool.release(tables[i]);
        tokens[i] = 0;
        break;
      default: {
        const size_t j = random() % tables.size();
        if (i == j || !tables[j].empty()) break;
        const auto shared =
            static_cast<int32_t>(tables[i].size() == 0 ? 0 : random() % tables[i].size());
        for (int32_t k = 0; k < shared; ++k) pool.share(tables[i][k], tables[j]);
        tokens[j] = int64_t{shared} * kBlockTokens;
        break;
      }
    }
    pool.check(all);
  }
  EXPECT_GT(refused, 0);
  for (BlockTable& t : tables) pool.release(t);
  pool.check(all);
  EXPECT_EQ(pool.free(), pool.total());
}

// Unfindable blocks are reused first, expected ends last, and the others by age.
TEST(BlockPool, WhatWindowsLeaveBehindIsReusedInThisOrder) {
  BlockPool pool(6);
  BlockTable table;
  ASSERT_TRUE(pool.grow(table, 5 * kBlockTokens));
  const BlockTable blocks = table;
  const std::vector<int32_t> tokens(kBlockTokens, 1);
  std::vector<PrefixHash> hashes;
  for (uint64_t i = 0; i < 5; ++i) hashes.push_back({i + 1, 0});
  for (size_t i = 0; i < 4; ++i) pool.publish(table[i], hashes[i], tokens.data());
  std::vector<int32_t> unused;
  pool.on_unused([&](int32_t b) { unused.push_back(b); });
  const BlockTable* tables[] = {&table};
  pool.leave_behind(table, 0, true);
  pool.leave_behind(table, 1, false);
  pool.leave_behind(table, 2, false);
  pool.check(tables);
  EXPECT_EQ(unused, BlockTable{});
  EXPECT_EQ(std::count(table.begin(), table.end(), kGone), 3);
  EXPECT_EQ(pool.free(), 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(pool.find(hashes[i], tokens.data()), blocks[i]);
  pool.truncate(table, 4 * kBlockTokens);  // the unpublished one
  EXPECT_EQ(unused, BlockTable{blocks[4]});
  BlockTable other;
  pool.share(blocks[2], other);
  pool.leave_behind(other, 0, false);
  pool.relink();
  std::vector<int32_t> taken;
  for (BlockTable fresh; taken.size() < 5; fresh.clear()) {
    other.push_back(kGone);
    ASSERT_TRUE(pool.grow(fresh, 1));
    taken.push_back(fresh[0]);
  }
  const std::set<int32_t> first(taken.begin(), taken.begin() + 2);
  EXPECT_EQ(first.count(blocks[4]), 1u);  // and one never held
  EXPECT_EQ(std::vector<int32_t>(taken.begin() + 2, taken.end()),
            (std::vector<int32_t>{blocks[1], blocks[2], blocks[0]}));
  EXPECT_EQ(pool.find(hashes[0], tokens.data()), -1);
  EXPECT_EQ(pool.find(hashes[3], tokens.data()), blocks[3]);
  pool.release(table);
  pool.release(other);
  EXPECT_EQ(pool.free(), 1);
}

TEST(BlockPool, ASharedBlockLivesUntilItsLastHolderLeaves) {
  BlockPool pool(4);
  BlockTable a, b;
  ASSERT_TRUE(pool.grow(a, 64));
  pool.share(a[0], b);
  EXPECT_EQ(pool.holders(a[0]), 2);
  const int32_t first = a[0];
  pool.release(a);
  EXPECT_EQ(pool.holders(first), 1);
  EXPECT_EQ(pool.free(), 3);
  pool.release(b);
  EXPECT_EQ(pool.free(), 4);
}

TEST(BlockPoolDeathTest, BooksThatDoNotBalanceStopTheProgram) {
  BlockPool pool(4);
  BlockTable a;
  ASSERT_TRUE(pool.grow(a, 32));
  const BlockTable forged = {a[0], a[0]};
  const BlockTable* tables[] = {&forged};
  EXPECT_DEATH(pool.check(tables), "broken promise");
}

TEST(SlotPool, EachSlotIsHeldOnce) {
  SlotPool pool(3);
  const int32_t a = pool.take(), b = pool.take(), c = pool.take();
  EXPECT_EQ(pool.take(), -1);
  const int32_t held[] = {a, b, c};
  pool.check(held);
  pool.give_back(b);
  EXPECT_EQ(pool.take(), b);
  pool.check(held);
}

}  // namespace
}  // namespace braid
