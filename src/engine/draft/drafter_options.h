// drafter_options.h -- what drafters that run a network are given at start.
#pragma once

#include <cstdint>
#include <functional>

#include "ops/tensor.h"

namespace braid {

struct DrafterOptions {
  int32_t sequences = 0;
  int32_t max_drafts = 0;      // of a sequence
  float p_min = 0;             // a chain ends before a guess that is less probable to the drafter
  int32_t block_table = 0;     // KV blocks of one sequence
  Tensor logits;               // [rows, V], free between steps; rows for all guesses that are made at once
  std::function<void()> wait;  // called while the device works
};

}  // namespace braid
