// block_pool.h -- who holds which block of the KV cache, and which blocks can be found again.
//
// A block is kBlockTokens consecutive cells of every attention layer of a KV group (ops/state.h); each group
// has a pool. This file counts holders; it never touches device memory (sequence_cache.h owns the bytes). A
// sequence's table lists its blocks in cell order; blocks behind its window are let go of first and leave a
// kGone in it.
//
// A full block may be published under the hash of the prefix it ends (prefix_hash.h). A published block is
// never written again; when its last holder lets go it stays findable and waits at the back of the free
// queue, so the free queue is a list of what was used least recently. Blocks that cannot be found again wait
// at the front. A table lets go of its last block first: a block can be reached only through those before it.
// Findable blocks that a window has left behind where nobody is expected to go on wait ahead of all others.
//
// A prefix may be marked as one to keep (its checkpoint: checkpoints.h): then its blocks are not in the queue
// even if nobody holds them. When the queue is empty the owner of the marks is asked to take some back. So
// blocks that nothing can be resumed from go first, then those whose mark is worth least.
//
// Always true, and verified by check():
//   a block is in the free queue exactly when nobody holds it and it is not kept
//   free == blocks that nobody holds, kept ones included; free + held == total
//   a block is kept exactly when it is marked or the one before a kept block; kept blocks are published
//   holders(b) == number of table entries equal to b
//   hash h is mapped to b exactly when b was published under h; at most one block per hash
//   the free queue is linked consistently in both directions
//
// Used by the engine thread only, hence no locks.
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
inline constexpr int32_t kGone = -1;  // entry of a table: behind the window, not held any more

constexpr int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

class BlockPool {
 public:
  explicit BlockPool(int32_t blocks);
  // Host memory of the books of so many blocks when all of them are published.
  static uint64_t bytes(int32_t blocks);

  int32_t total() const { return static_cast<int32_t>(blocks_.size()) - 2; }
  int32_t free() const { return free_; }
  int32_t published() const { return static_cast<int32_t>(by_hash_.size()); }
  int32_t holders(int32_t block) const { return blocks_[block].holders; }
  uint64_t evictions() const { return evictions_; }

  // Brings `table` to at least `tokens` cells. False, and nothing changed, when blocks are short.
  bool grow(BlockTable& table, int64_t tokens);

  // Lets go of the blocks that `tokens` cells do not need, last first.
  void truncate(BlockTable& table, int64_t tokens);
  void release(BlockTable& table) { truncate(table, 0); }

  // Lets go of table[index], which the table's window has left behind. `expected`: somebody may go on where
  // it is needed; else it is reused before those of which that is known or open.
  void leave_behind(BlockTable& table, int32_t index, bool expected);

  // Appends `block` to the table, which holds it from now on (found by find(), or another table's).
  void share(int32_t block, BlockTable& table);

  // If others hold table[index] too, replaces it by a block of its own and returns the old one, whose bytes
  // the caller copies; -1 if it was alone already; kNoBlock, and nothing changed, when blocks are short.
  static constexpr int32_t kNoBlock = -2;
  int32_t make_private(BlockTable& table, int32_t index);

  // The block that ends the prefix `hash`, if its tokens are those given; -1 if there is none.
  int32_t find(const PrefixHash& hash, const int32_t* tokens) const;
  // Makes a full block findable. A prefix that is published already keeps its first block if that is held or
  // kept; else it gets this one, which was used last.
  void publish(int32_t block, const PrefixHash& hash, const int32_t* tokens);
  // Every published block that nobody holds becomes an ordinary free one; marks on them are taken back.
  void forget_unheld();

  // Marks the prefix that ends with the last of `chain`: the hashes of all its blocks from the first on. One
  // prefix may be marked several times. False, and nothing changed, if one of them is not published.
  bool mark(std::span<const PrefixHash> chain);
  void unmark(const PrefixHash& last);
  // Of a marked prefix: whether its blocks could be used for something else without its mark: 2, some of them
  // at once; 1, when those who hold them let go; 0: a longer marked prefix needs them too.
  int freed_by_unmark(const PrefixHash& last) const;
  // Whether a marked prefix of `levels` blocks more than `shorter` begins with it.
  bool begins_with(const PrefixHash& longer, int32_t levels, const PrefixHash& shorter) const;
  // First tokens of the block that follows `levels - 1` blocks before the last of a marked prefix.
  const int32_t* tokens_before(const PrefixHash& longer, int32_t levels) const;

  // Puts the free blocks that cannot be found in ascending order: fresh sequences read memory forwards.
  // Findable ones keep their age. Cheap enough for whenever nothing runs.
  void relink();

  // Any order of the free queue is right; tests use a random one.
  void shuffle_free(const std::function<uint64_t()>& random);

  // Asked to unmark() a prefix when all free blocks are kept; false: there is none.
  void on_shortage(std::function<bool()> asked) { asked_to_unmark_ = std::move(asked); }
  // Told of each block that is taken anew, last of all.
  void on_taken(std::function<void(int32_t)> told) { told_of_taken_ = std::move(told); }
  // Told of each block that becomes free and unfindable, or is taken anew: what fills it with
  // zeros, or in tests with poison.
  void on_unused(std::function<void(int32_t)> told) { told_of_unused_ = std::move(told); }

  // Stops the program if the books do not balance. `tables`: all that exist; `marked`: all marks.
  void check(std::span<const BlockTable* const> tables, std::span<const PrefixHash> marked = {}) const;

 private:
  struct Block {
    int32_t holders = 0;
    int32_t previous = -1;  // in the free queue
    int32_t next = -1;
    bool published = false;
    int32_t marks = 0;
    int32_t kept_after = 0;  // kept blocks that follow it
    int32_t before = -1;     // if kept: the block before it; -1: it is the first
    PrefixHash hash;
    bool kept() const { return marks + kept_after > 0; }
  };
  // The free queue is two rings, of which the first is used up first: blocks that cannot be found, then
  // those left behind; and the others.
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

  std::vector<Block> blocks_;    // the last two are the sentinels of the free queue
  std::vector<int32_t> tokens_;  // [total][kBlockTokens], of published blocks
  std::unordered_map<PrefixHash, int32_t, PrefixHashKey> by_hash_;
  int32_t free_ = 0;
  uint64_t evictions_ = 0;
  std::function<bool()> asked_to_unmark_;
  std::function<void(int32_t)> told_of_taken_;
  std::function<void(int32_t)> told_of_unused_;
};

}  // namespace braid
