// products_experts.cu -- the kernels for many experts with few rows each (product_experts.cuh).
#include "ops/cuda/gemm/product_experts.cuh"

namespace braid::cuda {

bool launch_experts(Context& context, Pack pack, const ProductArgs& args) {
  switch (pack) {
    case Pack::f16:
      return false;
    case Pack::q8:
      return launch_experts_format<FormatQ8>(context, args);
    case Pack::q4k:
      return launch_experts_format<FormatQ4K>(context, args);
    case Pack::q6k:
      return launch_experts_format<FormatQ6K>(context, args);
    case Pack::q5:
      return launch_experts_format<FormatQ5>(context, args);
    case Pack::t4:
      return launch_experts_format<FormatT4>(context, args);
    case Pack::fp4:
      return launch_experts_format<FormatFp4>(context, args);
  }
  return false;
}

}  // namespace braid::cuda
