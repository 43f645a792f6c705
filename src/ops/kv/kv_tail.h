// kv_tail.h -- which cells a query reads exactly (f16) and which from sealed units: a function of
// its position alone, so bytes do not depend on the cuts of a prompt or on other sequences.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/batch.h"

namespace braid {

struct KvTail {
  int32_t tail_blocks = 3;  // before the block of the query's own cell
  int32_t sink_blocks = 0;  // at the start of a sequence

  // A query at `position` reads cells [sealed_from(), exact_from(position)) from units, all others
  // exactly. Both are multiples of kBlockTokens; the range may be empty.
  constexpr int32_t sealed_from() const { return sink_blocks * kBlockTokens; }
  constexpr int32_t exact_from(int32_t position) const {
    return kBlockTokens * std::max(sink_blocks, position / kBlockTokens - tail_blocks);
  }
  // Including the query's own block.
  constexpr int32_t most_exact_blocks() const { return sink_blocks + tail_blocks + 1; }
  constexpr bool reads_exact(int32_t position, int32_t cell) const {
    return cell < sealed_from() || cell >= exact_from(position);
  }
  // Whether no query reads a unit before all its rows are certain, for speculative depth `deepest`.
  constexpr bool holds_drafts(int32_t deepest) const {
    return tail_blocks * kBlockTokens >= deepest;
  }
};

}  // namespace braid
