// norm.h -- add_norm, optionally also in the order of the wgmma kernels (norm.cu).
#pragma once

#include "ops/cuda/context.h"
#include "ops/cuda/ordered_rows.h"
#include "ops/tensor.h"

namespace braid::cuda {

// Ops::add_norm. True: `ordered`, if given, is written too.
bool add_norm(Context& context, Tensor y, Tensor residual, Tensor x, const float* weight, float eps,
              const OrderedRows& ordered = {});

}  // namespace braid::cuda
