// blocks.cpp -- see blocks.h. The free queue is a ring through the blocks with one sentinel; the block after
// the sentinel is reused first.
#include "engine/blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace braid {

BlockPool::BlockPool(int32_t blocks)
    : blocks_(static_cast<size_t>(blocks) + 1),
      tokens_(static_cast<size_t>(blocks) * kBlockTokens),
      free_(blocks) {
  BRAID_CHECK(blocks >= 0);
  by_hash_.reserve(static_cast<size_t>(blocks));
  std::vector<int32_t> order;
  for (int32_t b = 0; b < blocks; ++b) order.push_back(b);
  relink_in(order);
}

void BlockPool::relink_in(const std::vector<int32_t>& order) {
  int32_t before = sentinel();
  for (const int32_t b : order) {
    blocks_[before].next = b;
    blocks_[b].previous = before;
    before = b;
  }
  blocks_[before].next = sentinel();
  blocks_[sentinel()].previous = before;
}

void BlockPool::unlink(int32_t b) {
  Block& block = blocks_[b];
  blocks_[block.previous].next = block.next;
  blocks_[block.next].previous = block.previous;
  block.previous = block.next = -1;
  --free_;
}

void BlockPool::link_before(int32_t b, int32_t next) {
  Block& block = blocks_[b];
  block.next = next;
  block.previous = blocks_[next].previous;
  blocks_[block.previous].next = b;
  blocks_[next].previous = b;
  ++free_;
}

int32_t BlockPool::take() {
  const int32_t b = blocks_[sentinel()].next;
  Block& block = blocks_[b];
  BRAID_CHECK(b != sentinel() && block.holders == 0);
  unlink(b);
  if (block.published) {
    by_hash_.erase(block.hash);
    block.published = false;
    ++evictions_;
    if (told_of_eviction_) told_of_eviction_(block.hash);
  }
  if (told_of_unused_) told_of_unused_(b);
  block.holders = 1;
  return b;
}

void BlockPool::give_back(int32_t b) {
  Block& block = blocks_[b];
  BRAID_CHECK(block.holders > 0);
  if (--block.holders > 0) return;
  link_before(b, block.published ? sentinel() : blocks_[sentinel()].next);
  if (!block.published && told_of_unused_) told_of_unused_(b);
}

bool BlockPool::grow(BlockTable& table, int64_t tokens) {
  const int64_t missing = blocks_for(tokens) - static_cast<int64_t>(table.size());
  if (missing > free_) return false;
  for (int64_t i = 0; i < missing; ++i) table.push_back(take());
  return true;
}

void BlockPool::truncate(BlockTable& table, int64_t tokens) {
  BRAID_CHECK(tokens >= 0);
  while (static_cast<int64_t>(table.size()) > blocks_for(tokens)) {
    give_back(table.back());
    table.pop_back();
  }
}

void BlockPool::share(int32_t b, BlockTable& table) {
  BRAID_CHECK(b >= 0 && b < total());
  Block& block = blocks_[b];
  BRAID_CHECK(block.holders > 0 || block.published);
  if (block.holders++ == 0) unlink(b);
  table.push_back(b);
}

int32_t BlockPool::make_private(BlockTable& table, int32_t index) {
  const int32_t old = table[static_cast<size_t>(index)];
  BRAID_CHECK(!blocks_[old].published);  // full: nobody has reason to write it
  if (blocks_[old].holders == 1) return -1;
  if (free_ == 0) return kNoBlock;
  table[static_cast<size_t>(index)] = take();
  give_back(old);
  return old;
}

int32_t BlockPool::find(const PrefixHash& hash, const int32_t* tokens) const {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return -1;
  const bool same = std::memcmp(tokens_of(it->second), tokens, kBlockTokens * sizeof(int32_t)) == 0;
  return same ? it->second : -1;
}

void BlockPool::publish(int32_t b, const PrefixHash& hash, const int32_t* tokens) {
  Block& block = blocks_[b];
  BRAID_CHECK(block.holders > 0);
  if (block.published || !by_hash_.emplace(hash, b).second) return;
  block.published = true;
  block.hash = hash;
  std::copy_n(tokens, kBlockTokens, &tokens_[int64_t{b} * kBlockTokens]);
}

void BlockPool::forget_unheld() {
  for (int32_t b = 0; b < total(); ++b) {
    Block& block = blocks_[b];
    if (!block.published || block.holders > 0) continue;
    by_hash_.erase(block.hash);
    block.published = false;
    if (told_of_eviction_) told_of_eviction_(block.hash);
    if (told_of_unused_) told_of_unused_(b);
  }
  relink();
}

void BlockPool::relink() {
  std::vector<int32_t> order;
  std::vector<int32_t> findable;
  for (int32_t b = blocks_[sentinel()].next; b != sentinel(); b = blocks_[b].next)
    (blocks_[b].published ? findable : order).push_back(b);
  std::sort(order.begin(), order.end());
  order.insert(order.end(), findable.begin(), findable.end());
  relink_in(order);
}

void BlockPool::shuffle_free(const std::function<uint64_t()>& random) {
  std::vector<int32_t> order;
  for (int32_t b = blocks_[sentinel()].next; b != sentinel(); b = blocks_[b].next) order.push_back(b);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  relink_in(order);
}

void BlockPool::check(std::span<const BlockTable* const> tables) const {
  std::vector<int32_t> entries(blocks_.size(), 0);
  for (const BlockTable* table : tables)
    for (const int32_t b : *table) {
      BRAID_CHECK(b >= 0 && b < total());
      ++entries[b];
    }
  int32_t held = 0;
  size_t published = 0;
  for (int32_t b = 0; b < total(); ++b) {
    BRAID_CHECK(blocks_[b].holders == entries[b]);
    if (entries[b] > 0) ++held;
    if (!blocks_[b].published) continue;
    ++published;
    const auto it = by_hash_.find(blocks_[b].hash);
    BRAID_CHECK(it != by_hash_.end() && it->second == b);
  }
  BRAID_CHECK(published == by_hash_.size());
  BRAID_CHECK(held + free_ == total());
  int32_t linked = 0;
  for (int32_t b = blocks_[sentinel()].next; b != sentinel(); b = blocks_[b].next) {
    BRAID_CHECK(blocks_[b].holders == 0 && blocks_[blocks_[b].next].previous == b);
    BRAID_CHECK(++linked <= total());
  }
  BRAID_CHECK(linked == free_);
}

}  // namespace braid
