// attention.cpp -- full attention with output gate: products, norms and rope into the cache, softmax,
// product.
#include "model/blocks.h"

namespace braid {

void attention_block(Ops& ops, Tensor residual, Tensor normed, Tensor rope, const AttentionBlock& w,
                     const AttentionParams& params, const KvLayer& kv, const AttentionScratch& scratch,
                     const Batch& batch) {
  const int64_t rows = normed.rows;
  const Tensor qg = scratch.qg.top(rows);
  const Tensor k = scratch.k.top(rows);
  const Tensor v = scratch.v.top(rows);
  const Tensor q = scratch.q.top(rows);
  const Tensor attended = scratch.attended.top(rows);

  const LinearPart in[] = {{&w.q, nullptr, qg}, {&w.k, nullptr, k}, {&w.v, nullptr, v}};
  ops.linear(in, normed);
  ops.qk_norm_rope_store(q, qg, k, v, rope, w.norms, params, kv, batch);
  ops.attention(attended, q, qg, params, kv, batch);
  const LinearPart out[] = {{&w.output, nullptr, residual, Tail::add}};
  ops.linear(out, attended);
}

}  // namespace braid
