// moe.h -- expert routing. The experts' products are Products::moe_ffn (linear.h).
#pragma once

#include <span>

#include "base/threads.h"
#include "ops/ops.h"

namespace braid::cpu {

// order [workers]: scratch of `experts` floats each.
void moe_route(ThreadPool& pool, std::span<float* const> order, Tensor ids, Tensor weights,
               Tensor logits, const RouteParams& params);

}  // namespace braid::cpu
