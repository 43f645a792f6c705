// attention.cpp -- full attention with output gate: products, norms and rope into the cache; softmax;
// product.
#include "model/layers/layers.h"

namespace braid {

void attention_in(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, Tensor rope,
                  const AttentionBlock& w, const AttentionParams& params, const KvLayer& kv,
                  const AttentionScratch& scratch, const Batch& batch, bool attend) {
  const int64_t rows = normed.rows;
  const Tensor q = scratch.q.top(rows);
  const Tensor qg = scratch.qg.top(rows);
  const Tensor k = scratch.k.top(rows);
  const Tensor v = scratch.v.top(rows);
  const LinearPart in[] = {{&w.q, nullptr, qg}, {&w.k, nullptr, k}, {&w.v, nullptr, v}};
  ops.norm_linear(in, normed, residual, norm.weight, norm.eps);
  if (attend) {
    ops.store_attend(scratch.attended.top(rows), q, qg, k, v, rope, w.norms, params, kv, batch);
  } else {
    ops.qk_norm_rope_store(q, qg, k, v, rope, w.norms, params, kv, batch);
  }
}

void attention_rows(Ops& ops, const AttentionParams& params, const KvLayer& kv,
                    const AttentionScratch& scratch, int32_t first_row, const Batch& part) {
  const auto rows = [&](const Tensor& t) { return t.middle(first_row, part.tokens); };
  ops.attention(rows(scratch.attended), rows(scratch.q), rows(scratch.qg), params, kv, part);
}

void attention_out(Ops& ops, Tensor residual, const AttentionBlock& w, const AttentionScratch& scratch) {
  const LinearPart out[] = {{&w.output, nullptr, residual, Tail::add}};
  ops.linear(out, scratch.attended.top(residual.rows));
}

}  // namespace braid
