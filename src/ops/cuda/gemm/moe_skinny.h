// moe_skinny.h -- the experts of few tokens in two launches (moe_skinny.cu, moe_few.cu).
#pragma once

#include "ops/cuda/choose.cuh"
#include "ops/cuda/context.h"
#include "ops/cuda/device_math.h"
#include "ops/ops.h"

namespace braid::cuda {

inline constexpr int kSkinnyTokens = 2;
inline constexpr int kFewTokens = 8;

// Most tokens * used of moe_few.cu.
inline constexpr int kMostFewPairs = 64;
// Counts of 32 stored hidden values per entry, the shared expert's first; then of finished blocks
// of the second kernel. Zeros between steps.
inline constexpr int kFewCounts = kMostFewPairs + 2;

struct MoeMemory {
  Act* hidden;       // rows * (used + 1) rows of the widest inner width, rounded up to 8
  unsigned* stored;  // [kFewCounts]
};

// `logits` null: ids and weights are given, ids distinct per token. False: nothing was launched.
bool moe_skinny(Context& context, const MoeMemory& memory, Tensor y, Tensor x, Tensor ids,
                Tensor weights, const Tensor* logits, const ChoiceRule& rule, const MoeWeights& w);

}  // namespace braid::cuda
