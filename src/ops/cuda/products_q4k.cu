// products_q4k.cu -- the product kernels of one packed format (product_few.cuh, product_kernel.cuh).
#include "ops/cuda/product_few.cuh"
#include "ops/cuda/product_kernel.cuh"

namespace braid::cuda {

void launch_products_q4k(Context& context, int groups, const ProductArgs& args) {
  if (groups == 1 && launch_few<FormatQ4K>(context, args)) return;
  launch_format<FormatQ4K>(context, groups, args);
}

}  // namespace braid::cuda
