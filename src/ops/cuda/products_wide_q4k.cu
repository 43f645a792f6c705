// products_wide_q4k.cu -- the sm_90a product kernels of one packed format (product_wide.cuh).
#include "ops/cuda/product_wide.cuh"

namespace braid::cuda {

void launch_wide_q4k(Context& context, int columns, const ProductArgs& args) {
  launch_wide<FormatQ4K>(context, columns, args);
}

}  // namespace braid::cuda
