// delta.cpp -- gated delta layer: input products, one op for the recurrence, output product.
#include "model/layers.h"

namespace braid {

void delta_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm,
                 const DeltaBlock& w, const DeltaLayer& layer, const DeltaScratch& scratch,
                 const Batch& batch, const BlockSum& sum) {
  const int64_t rows = normed.rows;
  const DeltaInputs in = {scratch.qkv.top(rows), scratch.z.top(rows), scratch.alpha.top(rows),
                          scratch.beta.top(rows)};
  const Tensor out = scratch.out.top(rows);

  const LinearPart products[] = {{&w.qkv, nullptr, in.qkv},
                                 {&w.z, nullptr, in.z},
                                 {&w.alpha, nullptr, in.alpha},
                                 {&w.beta, nullptr, in.beta}};
  ops.norm_linear(products, normed, residual, norm.weight, norm.eps);
  ops.delta_rule(out, in, w.small, layer, batch);
  const LinearPart product[] = {{&w.output, nullptr, sum.y, sum.tail}};
  ops.linear(product, out);
}

}  // namespace braid
