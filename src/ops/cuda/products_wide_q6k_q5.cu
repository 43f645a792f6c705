// products_wide_q6k_q5.cu -- the sm_90a product kernel of two packed formats in one launch
// (product_wide.cuh): published mixes keep some tensors of an input in q6_K and the others in q5_K.
#include "ops/cuda/product_wide.cuh"

namespace braid::cuda {

void launch_wide_q6k_q5(Context& context, int columns, const ProductArgs& args) {
  launch_wide<FormatQ6K, FormatQ5>(context, columns, args);
}

}  // namespace braid::cuda
