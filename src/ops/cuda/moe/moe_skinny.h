// moe_skinny.h -- the experts of few tokens in two launches: of one or two (moe_skinny.cu), and of more
// (moe_few.cu).
#pragma once

#include "ops/cuda/primitives/context.h"
#include "ops/cuda/primitives/device_math.h"
#include "ops/cuda/sampling/choose.cuh"
#include "ops/ops.h"

namespace braid::cuda {

inline constexpr int kSkinnyTokens = 2;
inline constexpr int kFewTokens = 8;  // moe_few.cu

// Tokens * used that moe_few.cu takes.
inline constexpr int kMostFewPairs = 64;
// In memory, zeros between steps: how many times 32 hidden values of an entry are stored, the shared expert's
// first; then how many blocks of the second kernel need these counts no more.
inline constexpr int kFewCounts = kMostFewPairs + 2;

struct MoeMemory {
  Act* hidden;       // rows * (used + 1) rows of the widest expert's inner width, to a multiple of 8
  unsigned* stored;  // [kFewCounts]
};

// Ops::moe with `logits` and their rule, Ops::moe_ffn without (null); then the ids of a token must differ.
// False: there is no form for these, and nothing was launched.
bool moe_skinny(Context& context, const MoeMemory& memory, Tensor y, Tensor x, Tensor ids, Tensor weights,
                const Tensor* logits, const ChoiceRule& rule, const MoeWeights& w);

}  // namespace braid::cuda
