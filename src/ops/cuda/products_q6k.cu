// products_q6k.cu -- the product kernels of one packed format (product_few.cuh, product_kernel.cuh).
#include "ops/cuda/product_few.cuh"
#include "ops/cuda/product_kernel.cuh"

namespace braid::cuda {

void launch_products_q6k(Context& context, int groups, const ProductArgs& args) {
  if (groups == 1 && launch_few<FormatQ6K>(context, args)) return;
  launch_format<FormatQ6K>(context, groups, args);
}

}  // namespace braid::cuda
