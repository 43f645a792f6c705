// products_wide_q6k.cu -- the sm_90a product kernels of one packed format (product_wide.cuh).
#include "ops/cuda/product_wide.cuh"

namespace braid::cuda {

void launch_wide_q6k(Context& context, int columns, const ProductArgs& args) {
  launch_wide<FormatQ6K>(context, columns, args);
}

}  // namespace braid::cuda
