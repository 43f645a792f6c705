// gemm_small.cu -- the kernel for small matrices and 9 to 128 rows (gemm_small.cuh).
#include "ops/cuda/gemm/gemm_small.cuh"

namespace braid::cuda {

bool small_fits(const Context& context, int64_t blocks, int units) {
  return context.capability >= 90 && blocks <= 16 && units <= 32 &&
         context.shared_bytes_per_block >= kSmallShared + 2048;
}

void launch_gemm_small(Context& context, const GemmArgs& args) {
  const dim3 grid(static_cast<unsigned>(2 * args.blocks),
                  static_cast<unsigned>(div_up(args.tokens, kSmallRows)));
  launch_clusters(context, 2, gemm_small_kernel, grid, kSmallThreads, kSmallShared, args);
}

}  // namespace braid::cuda
