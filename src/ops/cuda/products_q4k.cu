// products_q4k.cu -- the product kernels of one packed format: up to 8 rows, lists of experts, anything else.
#include "ops/cuda/product_few.cuh"
#include "ops/cuda/product_kernel.cuh"
#include "ops/cuda/product_list.cuh"

namespace braid::cuda {

void launch_products_q4k(Context& context, int groups, const ProductArgs& args) {
  if (groups == 1 &&
      (args.tiles != nullptr ? launch_list<FormatQ4K>(context, args) : launch_few<FormatQ4K>(context, args)))
    return;
  launch_format<FormatQ4K>(context, groups, norm_first(context, args));
}

}  // namespace braid::cuda
