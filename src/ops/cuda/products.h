// products.h -- launching products: what linear, logits and the experts share.
#pragma once

#include <span>
#include <vector>

#include "ops/cuda/packed.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid::cuda {

size_t products_bytes(const Context& context, const Device::WorkspaceNeeds& needs);

class Products {
 public:
  Products(Context& context, const Device::WorkspaceNeeds& needs, std::byte* work);

  void linear(std::span<const LinearPart> parts, Tensor x);

  // Pieces of a launch.
  ProductArgs args_for(Tensor x);  // copies x to a readable form if it must
  static ProductPart part_for(const Weight& w, Tensor y, Store store);
  static void add_up(ProductPart& part, const Weight& up);
  static bool same_form(const Weight& a, const Weight& b);
  void launch(const Weight& like, int groups, ProductArgs args, std::span<const ProductPart> parts);

 private:
  Context& context_;
  const Device::WorkspaceNeeds& needs_;
  unsigned* counters_ = nullptr;
  float* partials_ = nullptr;
  Act* padded_ = nullptr;
};

}  // namespace braid::cuda
