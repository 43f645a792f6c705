// mlp.cpp -- dense feed-forward: silu(gate x) * up x in one product op, then down.
#include "model/layers.h"

namespace braid {

void mlp_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, const MlpBlock& w,
               const MlpScratch& scratch, const BlockSum& sum) {
  const Tensor hidden = scratch.hidden.top(normed.rows);
  const LinearPart in[] = {{&w.gate, &w.up, hidden, Tail::silu_mul}};
  const LinearPart out[] = {{&w.down, nullptr, sum.y, sum.tail}};
  ops.announce_product(out, hidden);
  ops.norm_linear(in, normed, residual, norm.weight, norm.eps);
  ops.linear(out, hidden);
}

}  // namespace braid
