// gemm_router.h -- products with a few megabytes of 16-bit pairs for up to 8 rows of x.
#pragma once

#include "ops/cuda/gemm/gemm_kernels.h"

namespace braid::cuda {

bool router_fits(int64_t blocks, int x_units);
// Norms and writes x if the launch requires it. Only if router_fits().
void launch_gemm_router(Context& context, const GemmLaunch& launch);

}  // namespace braid::cuda
