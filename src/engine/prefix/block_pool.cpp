// block_pool.cpp -- see block_pool.h. The free queue is two rings with a sentinel each.
#include "engine/prefix/block_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace braid {

BlockPool::BlockPool(int32_t blocks)
    : blocks_(static_cast<size_t>(blocks) + 2),
      tokens_(static_cast<size_t>(blocks) * kBlockTokens),
      free_(blocks) {
  BRAID_CHECK(blocks >= 0);
  by_hash_.reserve(static_cast<size_t>(blocks));
  std::vector<int32_t> order;
  for (int32_t b = 0; b < blocks; ++b) order.push_back(b);
  relink_in(soon(), order);
  relink_in(late(), {});
}

uint64_t BlockPool::bytes(int32_t blocks) {
  // A map node: a link, the pair, its hash, a word of the allocator; plus a bucket.
  constexpr uint64_t kMapBytes =
      sizeof(decltype(by_hash_)::value_type) + 3 * sizeof(void*) + sizeof(void*);
  const auto count = static_cast<uint64_t>(blocks);
  return (count + 2) * sizeof(Block) + count * (kBlockTokens * sizeof(int32_t) + kMapBytes);
}

std::vector<int32_t> BlockPool::ring(int32_t sentinel) const {
  std::vector<int32_t> order;
  for (int32_t b = blocks_[sentinel].next; b != sentinel; b = blocks_[b].next) order.push_back(b);
  return order;
}

void BlockPool::relink_in(int32_t sentinel, const std::vector<int32_t>& order) {
  int32_t before = sentinel;
  for (const int32_t b : order) {
    blocks_[before].next = b;
    blocks_[b].previous = before;
    before = b;
  }
  blocks_[before].next = sentinel;
  blocks_[sentinel].previous = before;
}

int32_t BlockPool::next_free() const {
  for (const int32_t sentinel : {soon(), late()})
    if (blocks_[sentinel].next != sentinel) return blocks_[sentinel].next;
  return -1;
}

void BlockPool::unlink(int32_t b) {
  Block& block = blocks_[b];
  blocks_[block.previous].next = block.next;
  blocks_[block.next].previous = block.previous;
  block.previous = block.next = -1;
}

void BlockPool::link_before(int32_t b, int32_t next) {
  Block& block = blocks_[b];
  block.next = next;
  block.previous = blocks_[next].previous;
  blocks_[block.previous].next = b;
  blocks_[next].previous = b;
}

int32_t BlockPool::take() {
  while (next_free() < 0) BRAID_CHECK(asked_to_unmark_ && asked_to_unmark_());
  const int32_t b = next_free();
  Block& block = blocks_[b];
  BRAID_CHECK(block.holders == 0 && !block.kept());
  unlink(b);
  --free_;
  if (block.published) {
    by_hash_.erase(block.hash);
    block.published = false;
    ++evictions_;
  }
  if (told_of_unused_) told_of_unused_(b);
  if (told_of_taken_) told_of_taken_(b);
  block.holders = 1;
  return b;
}

void BlockPool::give_back(int32_t b, int32_t ring) {
  Block& block = blocks_[b];
  BRAID_CHECK(block.holders > 0);
  if (--block.holders > 0) return;
  ++free_;
  if (block.kept()) return;
  link_before(b, block.published ? ring : blocks_[soon()].next);
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
    if (table.back() != kGone) give_back(table.back(), late());
    table.pop_back();
  }
}

void BlockPool::leave_behind(BlockTable& table, int32_t index, bool expected) {
  give_back(std::exchange(table[static_cast<size_t>(index)], kGone), expected ? late() : soon());
}

void BlockPool::share(int32_t b, BlockTable& table) {
  BRAID_CHECK(b >= 0 && b < total());
  Block& block = blocks_[b];
  BRAID_CHECK(block.holders > 0 || block.published);
  if (block.holders++ == 0) {
    --free_;
    if (!block.kept()) unlink(b);
  }
  table.push_back(b);
}

int32_t BlockPool::make_private(BlockTable& table, int32_t index) {
  const int32_t old = table[static_cast<size_t>(index)];
  BRAID_CHECK(!blocks_[old].published);  // full blocks are never written
  if (blocks_[old].holders == 1) return -1;
  if (free_ == 0) return kNoBlock;
  table[static_cast<size_t>(index)] = take();
  give_back(old, late());
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
  if (block.published) return;
  if (const int32_t other = published_block(hash); other >= 0) {
    if (blocks_[other].holders > 0 || blocks_[other].kept()) return;
    by_hash_.erase(hash);
    blocks_[other].published = false;
    unlink(other);
    link_before(other, blocks_[soon()].next);
    if (told_of_unused_) told_of_unused_(other);
  }
  by_hash_.emplace(hash, b);
  block.published = true;
  block.hash = hash;
  std::copy_n(tokens, kBlockTokens, &tokens_[int64_t{b} * kBlockTokens]);
}

void BlockPool::forget_unheld() {
  const auto kept_and_unheld = [](const Block& b) { return b.holders == 0 && b.kept(); };
  while (std::any_of(blocks_.begin(), blocks_.end(), kept_and_unheld))
    BRAID_CHECK(asked_to_unmark_ && asked_to_unmark_());
  for (int32_t b = 0; b < total(); ++b) {
    Block& block = blocks_[b];
    if (!block.published || block.holders > 0) continue;
    by_hash_.erase(block.hash);
    block.published = false;
    if (told_of_unused_) told_of_unused_(b);
  }
  relink();
}

int32_t BlockPool::published_block(const PrefixHash& hash) const {
  const auto it = by_hash_.find(hash);
  return it == by_hash_.end() ? -1 : it->second;
}

bool BlockPool::mark(std::span<const PrefixHash> chain) {
  if (chain.empty()) return false;
  for (size_t i = chain.size(); i > 0; --i) {
    const int32_t b = published_block(chain[i - 1]);
    if (b < 0) return false;
    if (blocks_[b].kept()) break;  // so are those before it
  }
  int32_t after = -1;
  for (size_t i = chain.size(); i > 0; --i) {
    const int32_t b = published_block(chain[i - 1]);
    Block& block = blocks_[b];
    const bool was_kept = block.kept();
    ++(after < 0 ? block.marks : block.kept_after);
    if (after >= 0) blocks_[after].before = b;
    if (was_kept) break;
    if (block.holders == 0) unlink(b);
    block.before = -1;
    after = b;
  }
  return true;
}

void BlockPool::unmark(const PrefixHash& last) {
  int32_t b = published_block(last);
  BRAID_CHECK(b >= 0 && blocks_[b].marks > 0);
  --blocks_[b].marks;
  // The last one first, so that it is reused before those it depends on.
  while (b >= 0 && !blocks_[b].kept()) {
    if (blocks_[b].holders == 0) link_before(b, late());
    b = std::exchange(blocks_[b].before, -1);
    if (b >= 0) --blocks_[b].kept_after;
  }
}

int BlockPool::freed_by_unmark(const PrefixHash& last) const {
  const int32_t b = published_block(last);
  BRAID_CHECK(b >= 0 && blocks_[b].marks > 0);
  if (blocks_[b].kept_after > 0) return 0;
  return blocks_[b].holders == 0 ? 2 : 1;
}

bool BlockPool::begins_with(const PrefixHash& longer, int32_t levels,
                            const PrefixHash& shorter) const {
  int32_t b = published_block(longer);
  for (; levels > 0 && b >= 0; --levels) b = blocks_[b].before;
  return b >= 0 && blocks_[b].hash == shorter;
}

const int32_t* BlockPool::tokens_before(const PrefixHash& longer, int32_t levels) const {
  int32_t b = published_block(longer);
  for (; levels > 1 && b >= 0; --levels) b = blocks_[b].before;
  BRAID_CHECK(b >= 0);
  return tokens_of(b);
}

void BlockPool::relink() {
  std::vector<int32_t> order, behind, findable;
  for (const int32_t b : ring(soon())) (blocks_[b].published ? behind : order).push_back(b);
  for (const int32_t b : ring(late())) (blocks_[b].published ? findable : order).push_back(b);
  std::sort(order.begin(), order.end());
  order.insert(order.end(), behind.begin(), behind.end());
  relink_in(soon(), order);
  relink_in(late(), findable);
}

void BlockPool::shuffle_free(const std::function<uint64_t()>& random) {
  for (const int32_t sentinel : {soon(), late()}) {
    std::vector<int32_t> order = ring(sentinel);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    relink_in(sentinel, order);
  }
}

void BlockPool::check(std::span<const BlockTable* const> tables,
                      std::span<const PrefixHash> marked) const {
  std::vector<int32_t> entries(blocks_.size(), 0);
  for (const BlockTable* table : tables)
    for (const int32_t b : *table) {
      if (b == kGone) continue;
      BRAID_CHECK(b >= 0 && b < total());
      ++entries[b];
    }
  std::vector<int32_t> marks(blocks_.size(), 0);
  for (const PrefixHash& hash : marked) {
    const int32_t b = published_block(hash);
    BRAID_CHECK(b >= 0);
    ++marks[b];
  }
  std::vector<int32_t> kept_after(blocks_.size(), 0);
  int32_t held = 0;
  int32_t kept_unheld = 0;
  size_t published = 0;
  for (int32_t b = 0; b < total(); ++b) {
    const Block& block = blocks_[b];
    BRAID_CHECK(block.holders == entries[b] && block.marks == marks[b]);
    if (entries[b] > 0) ++held;
    if (block.kept()) {
      BRAID_CHECK(block.published);
      if (block.holders == 0) ++kept_unheld;
      if (block.before >= 0) ++kept_after[block.before];
    }
    if (!block.published) continue;
    ++published;
    BRAID_CHECK(published_block(block.hash) == b);
  }
  for (int32_t b = 0; b < total(); ++b) BRAID_CHECK(blocks_[b].kept_after == kept_after[b]);
  BRAID_CHECK(published == by_hash_.size());
  BRAID_CHECK(held + free_ == total());
  int32_t linked = 0;
  for (const int32_t sentinel : {soon(), late()})
    for (int32_t b = blocks_[sentinel].next; b != sentinel; b = blocks_[b].next) {
      BRAID_CHECK(blocks_[b].holders == 0 && !blocks_[b].kept() &&
                  blocks_[blocks_[b].next].previous == b);
      BRAID_CHECK(sentinel == soon() || blocks_[b].published);
      BRAID_CHECK(++linked <= total());
    }
  BRAID_CHECK(linked + kept_unheld == free_);
}

}  // namespace braid
