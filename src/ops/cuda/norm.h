// norm.h -- add_norm for those who want its result in the order of the wgmma kernels too (norm.cu).
#pragma once

#include "ops/cuda/primitives/context.h"
#include "ops/tensor.h"

namespace braid::cuda {

// The form in which the wgmma kernels of products read x (order_rows in gemm.cu), beside y.
struct OrderedRows {
  void* to = nullptr;  // null: not wanted
  int columns = 0;     // rows of a tile
};
// Ops::add_norm. True: `ordered` is written too, if it is wanted.
bool add_norm(Context& context, Tensor y, Tensor residual, Tensor x, const float* weight, float eps,
              const OrderedRows& ordered = {});

}  // namespace braid::cuda
