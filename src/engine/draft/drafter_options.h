// drafter_options.h -- what drafters that run a network are given at start.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "ops/tensor.h"

namespace braid {

struct DrafterOptions {
  int32_t sequences = 0;
  int32_t depth = 0;           // drafts of a sequence, one behind the other
  bool trees = false;          // and beside each other
  float p_min = 0;             // what is less probable to the drafter is no draft
  int32_t block_table = 0;     // KV blocks of one sequence
  Tensor logits;               // [rows, V], free between steps; rows for all guesses that are made at once
  std::function<void()> wait;  // called while the device works
};

// Candidates of a guess that the host reads: what noise may prefer is among them, nearly always.
inline constexpr int32_t kGuessCandidates = 16;
inline int32_t guess_candidates(int64_t vocabulary) {
  return static_cast<int32_t>(std::min<int64_t>(kGuessCandidates, vocabulary));
}

// Of ids, logits and sums, four bytes each.
constexpr size_t bytes_of_numbers(int64_t numbers) { return static_cast<size_t>(numbers) * sizeof(int32_t); }

}  // namespace braid
