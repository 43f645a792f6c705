// products_wide_fp4.cu -- the sm_90a product kernels of one packed format (product_wide.cuh).
#include "ops/cuda/product_wide.cuh"

namespace braid::cuda {

void launch_wide_fp4(Context& context, int columns, const ProductArgs& args) {
  launch_wide<FormatFp4>(context, columns, args);
}

}  // namespace braid::cuda
