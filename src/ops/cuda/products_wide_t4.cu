// products_wide_t4.cu -- the sm_90a product kernels of one packed format (product_wide.cuh).
#include "ops/cuda/product_wide.cuh"

namespace braid::cuda {

void launch_wide_t4(Context& context, int columns, const ProductArgs& args) {
  launch_wide<FormatT4>(context, columns, args);
}

}  // namespace braid::cuda
