// blocks.cpp -- see blocks.h. The free list is a ring through the blocks with one sentinel.
#include "engine/blocks.h"

#include "base/check.h"

namespace braid {

BlockPool::BlockPool(int32_t blocks) : blocks_(static_cast<size_t>(blocks) + 1), free_(blocks) {
  BRAID_CHECK(blocks >= 0);
  // Ascending order at start: fresh sequences read memory forwards.
  for (int32_t b = 0; b <= blocks; ++b) {
    blocks_[b].previous = b == 0 ? blocks : b - 1;
    blocks_[b].next = b == blocks ? 0 : b + 1;
  }
}

int32_t BlockPool::take() {
  const int32_t b = blocks_[sentinel()].next;
  BRAID_CHECK(b != sentinel() && blocks_[b].holders == 0);
  Block& block = blocks_[b];
  blocks_[block.previous].next = block.next;
  blocks_[block.next].previous = block.previous;
  block = {1, -1, -1};
  --free_;
  return b;
}

void BlockPool::give_back(int32_t b) {
  Block& block = blocks_[b];
  BRAID_CHECK(block.holders > 0);
  if (--block.holders > 0) return;
  // To the front: nothing in it can be found again, so it is the first to be reused.
  const int32_t s = sentinel();
  block.previous = s;
  block.next = blocks_[s].next;
  blocks_[block.next].previous = b;
  blocks_[s].next = b;
  ++free_;
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

void BlockPool::share(const BlockTable& from, int32_t blocks, BlockTable& to) {
  BRAID_CHECK(to.empty() && blocks >= 0 && static_cast<size_t>(blocks) <= from.size());
  for (int32_t i = 0; i < blocks; ++i) {
    ++blocks_[from[i]].holders;
    to.push_back(from[i]);
  }
}

void BlockPool::check(std::span<const BlockTable* const> tables) const {
  std::vector<int32_t> entries(blocks_.size(), 0);
  for (const BlockTable* table : tables)
    for (const int32_t b : *table) {
      BRAID_CHECK(b >= 0 && b < total());
      ++entries[b];
    }
  int32_t held = 0;
  for (int32_t b = 0; b < total(); ++b) {
    BRAID_CHECK(blocks_[b].holders == entries[b]);
    if (entries[b] > 0) ++held;
  }
  BRAID_CHECK(held + free_ == total());
  int32_t linked = 0;
  for (int32_t b = blocks_[sentinel()].next; b != sentinel(); b = blocks_[b].next) {
    BRAID_CHECK(blocks_[b].holders == 0 && blocks_[blocks_[b].next].previous == b);
    BRAID_CHECK(++linked <= total());
  }
  BRAID_CHECK(linked == free_);
}

}  // namespace braid
