// products_fp4.cu -- the product kernels of one packed format: up to 8 rows, lists of experts, anything else.
#include "ops/cuda/product_few.cuh"
#include "ops/cuda/product_kernel.cuh"
#include "ops/cuda/product_list.cuh"

namespace braid::cuda {

void launch_products_fp4(Context& context, int groups, const ProductArgs& args) {
  if (groups == 1 &&
      (args.tiles != nullptr ? launch_list<FormatFp4>(context, args) : launch_few<FormatFp4>(context, args)))
    return;
  launch_format<FormatFp4>(context, groups, norm_first(context, args));
}

}  // namespace braid::cuda
