// drafter_options.h -- start options of drafters that run a network.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "ops/tensor.h"

namespace braid {

struct DrafterOptions {
  int32_t sequences = 0;
  int32_t depth = 0;           // longest chain of drafts
  bool trees = false;          // several drafts for one position
  float p_min = 0;             // smallest probability of a draft
  int32_t block_table = 0;     // KV blocks of one sequence
  Tensor logits;               // [rows, V], free between steps; a row per guess of a batch
  std::function<void()> wait;  // called while the device works
};

// Candidates of a guess that the host reads. The noise's choice is almost always among them.
inline constexpr int32_t kGuessCandidates = 16;
inline int32_t guess_candidates(int64_t vocabulary) {
  return static_cast<int32_t>(std::min<int64_t>(kGuessCandidates, vocabulary));
}

constexpr size_t bytes_of_numbers(int64_t numbers) {
  return static_cast<size_t>(numbers) * sizeof(int32_t);
}

}  // namespace braid
