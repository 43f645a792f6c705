// moe.cpp -- mixture of experts: router, routed experts and the shared one.
#include "model/layers.h"

namespace braid {

void moe_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, const MoeBlock& w,
               const FeedForwardConfig& config, const MoeScratch& scratch, const BlockSum& sum,
               const Batch& batch) {
  const int64_t rows = normed.rows;
  const Tensor logits = scratch.logits.top(rows);
  const Tensor ids = scratch.ids.top(rows);
  const Tensor weights = scratch.weights.top(rows);

  const LinearPart router[] = {{&w.router, nullptr, logits}};
  ops.norm_linear(router, normed, residual, norm.weight, norm.eps);
  const RouteParams params{config.experts, config.experts_used, config.score, w.route_bias,
                           config.scale};
  if (sum.tail == Tail::store)
    ops.gather_rows(sum.y, sum.zeros, nullptr, static_cast<int32_t>(rows));
  ops.moe(sum.y, normed, ids, weights, logits, params, w.view(), batch);
}

}  // namespace braid
