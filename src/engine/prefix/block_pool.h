// block_pool.h -- which blocks of the KV cache are held, and which can be found again.
//
// A block is kBlockTokens consecutive cells of every attention layer of a KV group (ops/state.h);
// each group has a pool. It never touches device memory (sequence_cache.h). A sequence's table
// lists its blocks in cell order; blocks released before its window become kGone.
//
// A full block may be published under the hash of the prefix it ends (prefix_hash.h) and is never
// written again. Without holders it stays findable at the back of the free queue, which is ordered
// by last use. Unpublished blocks are first in the queue, then those that a window left without
// expected reuse. A table releases its last block first, as a block is reachable only through those
// before it.
//
// A marked prefix (its checkpoint: checkpoints.h) keeps its blocks out of the queue. When the queue
// is empty, the owner of the marks is asked to remove some.
//
// check() verifies:
// - A block is in the free queue if and only if it is neither held nor kept.
// - free counts all blocks without holders, kept ones included; free + held == total.
// - A block is kept if and only if it is marked or precedes a kept block. Kept ones are published.
// - holders(b) is the number of table entries equal to b.
// - Hash h maps to b if and only if b was published under h; at most one block per hash.
// - The free queue is linked consistently in both directions.
//
// Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/prefix/prefix_hash.h"
#include "ops/batch.h"

namespace braid {

using BlockTable = std::vector<int32_t>;
inline constexpr int32_t kGone = -1;  // table entry: released, before the window

constexpr int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

class BlockPool {
 public:
  explicit BlockPool(int32_t blocks);
  static uint64_t bytes(int32_t blocks);

  int32_t total() const { return static_cast<int32_t>(blocks_.size()) - 2; }
  int32_t free() const { return free_; }
  int32_t published() const { return static_cast<int32_t>(by_hash_.size()); }
  int32_t holders(int32_t block) const { return blocks_[block].holders; }
  uint64_t evictions() const { return evictions_; }

  // Extends `table` to at least `tokens` cells. False, with no change, when blocks are short.
  bool grow(BlockTable& table, int64_t tokens);

  void truncate(BlockTable& table, int64_t tokens);
  void release(BlockTable& table) { truncate(table, 0); }

  // Releases table[index], before the window. `expected`: a resume needs it, so it is reused late.
  void leave_behind(BlockTable& table, int32_t index, bool expected);

  void share(int32_t block, BlockTable& table);

  // If table[index] is shared, replaces it and returns the old block, whose bytes the caller
  // copies. -1: it is not shared. kNoBlock, with no change: blocks are short.
  static constexpr int32_t kNoBlock = -2;
  int32_t make_private(BlockTable& table, int32_t index);

  // The block that ends the prefix `hash` and has these tokens; -1 if not found.
  int32_t find(const PrefixHash& hash, const int32_t* tokens) const;
  // An already published prefix keeps its block if that is held or kept, else gets this one.
  void publish(int32_t block, const PrefixHash& hash, const int32_t* tokens);
  // Unpublishes all blocks without holders and removes their marks.
  void forget_unheld();

  // `chain`: all block hashes of the prefix; marks are counted. False: a block is not published.
  bool mark(std::span<const PrefixHash> chain);
  void unmark(const PrefixHash& last);
  // 2: removing the mark frees blocks at once; 1: frees held blocks later; 0: frees nothing, as a
  //    longer marked prefix needs them.
  int freed_by_unmark(const PrefixHash& last) const;
  // Whether the marked prefix `longer`, which has `levels` more blocks, begins with `shorter`.
  bool begins_with(const PrefixHash& longer, int32_t levels, const PrefixHash& shorter) const;
  // First tokens of the block `levels - 1` before the last of a marked prefix.
  const int32_t* tokens_before(const PrefixHash& longer, int32_t levels) const;

  // Sorts free unpublished blocks, so that new sequences read forwards. Cheap when idle.
  void relink();

  void shuffle_free(const std::function<uint64_t()>& random);

  // Called when all free blocks are kept; must unmark() a prefix. False: not possible.
  void on_shortage(std::function<bool()> asked) { asked_to_unmark_ = std::move(asked); }
  // Called last, for each newly taken block.
  void on_taken(std::function<void(int32_t)> told) { told_of_taken_ = std::move(told); }
  // Called for blocks that become unfindable or are taken; fills them with zeros or poison.
  void on_unused(std::function<void(int32_t)> told) { told_of_unused_ = std::move(told); }

  // Aborts on inconsistencies. `tables`: all that exist; `marked`: all marks.
  void check(std::span<const BlockTable* const> tables,
             std::span<const PrefixHash> marked = {}) const;

 private:
  struct Block {
    int32_t holders = 0;
    int32_t previous = -1;  // in the free queue
    int32_t next = -1;
    bool published = false;
    int32_t marks = 0;
    int32_t kept_after = 0;  // number of kept successors
    int32_t before = -1;     // if kept: the preceding block; -1: none
    PrefixHash hash;
    bool kept() const { return marks + kept_after > 0; }
  };
  // The rings of the free queue. `soon` is used first: unpublished blocks, then released ones.
  int32_t soon() const { return total(); }
  int32_t late() const { return total() + 1; }
  int32_t next_free() const;
  int32_t published_block(const PrefixHash& hash) const;
  int32_t take();
  void unlink(int32_t block);
  void link_before(int32_t block, int32_t next);
  void give_back(int32_t block, int32_t ring);
  std::vector<int32_t> ring(int32_t sentinel) const;
  void relink_in(int32_t sentinel, const std::vector<int32_t>& order);
  const int32_t* tokens_of(int32_t block) const { return &tokens_[int64_t{block} * kBlockTokens]; }

  std::vector<Block> blocks_;    // plus two sentinels of the free queue
  std::vector<int32_t> tokens_;  // [total][kBlockTokens], if published
  std::unordered_map<PrefixHash, int32_t, PrefixHashKey> by_hash_;
  int32_t free_ = 0;
  uint64_t evictions_ = 0;
  std::function<bool()> asked_to_unmark_;
  std::function<void(int32_t)> told_of_taken_;
  std::function<void(int32_t)> told_of_unused_;
};

}  // namespace braid
