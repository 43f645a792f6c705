// products_few_q6k_q5.cu -- the product kernel of up to 8 rows for two packed formats in one launch
// (product_few.cuh): published mixes keep some tensors of an input in q6_K and the others in q5_K.
#include "ops/cuda/product_few.cuh"

namespace braid::cuda {

bool launch_few_q6k_q5(Context& context, const ProductArgs& args, int second_block) {
  return launch_few<FormatQ6K, FormatQ5>(context, args, second_block);
}

}  // namespace braid::cuda
