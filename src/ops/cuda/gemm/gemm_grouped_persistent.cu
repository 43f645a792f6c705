// gemm_grouped_persistent.cu -- the kernels for many experts with few rows each
// (gemm_grouped_persistent.cuh).
#include "ops/cuda/gemm/gemm_grouped_persistent.cuh"

namespace braid::cuda {

bool launch_gemm_grouped_persistent(Context& context, Pack pack, const GemmArgs& args) {
  switch (pack) {
    case Pack::f16:
      return false;
    case Pack::q8:
      return launch_grouped_persistent<FormatQ8>(context, args);
    case Pack::q4k:
      return launch_grouped_persistent<FormatQ4K>(context, args);
    case Pack::q6k:
      return launch_grouped_persistent<FormatQ6K>(context, args);
    case Pack::q5:
      return launch_grouped_persistent<FormatQ5>(context, args);
    case Pack::t4:
      return launch_grouped_persistent<FormatT4>(context, args);
    case Pack::fp4:
      return launch_grouped_persistent<FormatFp4>(context, args);
  }
  return false;
}

}  // namespace braid::cuda
