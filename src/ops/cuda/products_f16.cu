// products_f16.cu -- the product kernels of one packed format (product_few.cuh, product_kernel.cuh).
#include "ops/cuda/product_few.cuh"
#include "ops/cuda/product_kernel.cuh"

namespace braid::cuda {

void launch_products_f16(Context& context, int groups, const ProductArgs& args) {
  if (groups == 1 && launch_few<FormatF16>(context, args)) return;
  launch_format<FormatF16>(context, groups, args);
}

}  // namespace braid::cuda
