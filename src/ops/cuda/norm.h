// norm.h -- add_norm for those who want its result in the order of the wgmma kernels too (norm.cu).
#pragma once

#include "ops/cuda/primitives/context.h"
#include "ops/cuda/primitives/ordered_rows.h"
#include "ops/tensor.h"

namespace braid::cuda {

// Ops::add_norm. True: `ordered` is written too, if it is wanted.
bool add_norm(Context& context, Tensor y, Tensor residual, Tensor x, const float* weight, float eps,
              const OrderedRows& ordered = {});

}  // namespace braid::cuda
