// blocks.h -- who holds which block of the KV cache.
//
// A block is kBlockTokens consecutive cells of every attention layer. This file counts holders; it never
// touches device memory (cache.h owns the bytes). A sequence's table lists its blocks in cell order.
//
// Always true, and verified by check():
//   a block is in the free list exactly when nobody holds it; free + held == total
//   holders(b) == number of table entries equal to b
//   the free list is linked consistently in both directions
//
// Used by the engine thread only, hence no locks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/batch.h"

namespace braid {

using BlockTable = std::vector<int32_t>;

constexpr int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

class BlockPool {
 public:
  explicit BlockPool(int32_t blocks);

  int32_t total() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  int32_t free() const { return free_; }
  int32_t holders(int32_t block) const { return blocks_[block].holders; }

  // Brings `table` to at least `tokens` cells. False, and nothing changed, when blocks are short.
  bool grow(BlockTable& table, int64_t tokens);

  // Lets go of the blocks that `tokens` cells do not need, last first.
  void truncate(BlockTable& table, int64_t tokens);
  void release(BlockTable& table) { truncate(table, 0); }

  // Appends the first `blocks` entries of `from` to the empty table `to`: both hold them now, neither may
  // write.
  void share(const BlockTable& from, int32_t blocks, BlockTable& to);

  // Stops the program if the books do not balance. `tables`: all that exist.
  void check(std::span<const BlockTable* const> tables) const;

 private:
  struct Block {
    int32_t holders = 0;
    int32_t previous = -1;  // in the free list
    int32_t next = -1;
  };
  int32_t sentinel() const { return total(); }
  int32_t take();
  void give_back(int32_t block);

  std::vector<Block> blocks_;  // the last one is the sentinel of the free list
  int32_t free_ = 0;
};

}  // namespace braid
