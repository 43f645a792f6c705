// kv_tail.h -- which cells a query reads exact (f16), and which from sealed units: a function of its position
// alone, so that bytes depend neither on how a prompt was cut nor on who else runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/batch.h"

namespace braid {

struct KvTail {
  int32_t tail_blocks = 3;  // before the block that a query's own cell is in
  int32_t sink_blocks = 0;  // at the beginning of a sequence

  // A query at `position` reads cells [sealed_from(), exact_from(position)) from units, all others exact.
  // Both are multiples of kBlockTokens; nothing is sealed for it where they are equal.
  constexpr int32_t sealed_from() const { return sink_blocks * kBlockTokens; }
  constexpr int32_t exact_from(int32_t position) const {
    return kBlockTokens * std::max(sink_blocks, position / kBlockTokens - tail_blocks);
  }
  // Blocks that hold what is read exact from a position on, the one with the position itself included.
  constexpr int32_t most_exact_blocks() const { return sink_blocks + tail_blocks + 1; }
  constexpr bool reads_exact(int32_t position, int32_t cell) const {
    return cell < sealed_from() || cell >= exact_from(position);
  }
  // Whether no query reads a block from a unit before all its rows are certain, where drafts are at most so
  // deep.
  constexpr bool holds_drafts(int32_t deepest) const { return tail_blocks * kBlockTokens >= deepest; }
};

}  // namespace braid
