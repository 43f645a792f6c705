// attention.cpp -- attention: products, norms and rope into the cache; softmax, gate; product.
#include <array>

#include "model/layers.h"

namespace braid {
namespace {

// The gates argument of the op: with joint gates the query tensor, without gates an empty one.
Tensor gates_of(const AttentionParams& params, const AttentionScratch& scratch) {
  if (params.gate.joint()) return scratch.qg;
  return params.gate.separate() ? scratch.gates : Tensor{};
}

}  // namespace

void attention_in(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, Tensor rope,
                  const AttentionBlock& w, const AttentionParams& params, const KvLayer& kv,
                  const AttentionScratch& scratch, const Batch& batch, bool attend) {
  const int64_t rows = normed.rows;
  const Tensor q = scratch.q.top(rows);
  const Tensor qg = scratch.qg.top(rows);
  const Tensor k = scratch.k.top(rows);
  const Tensor v = scratch.v.top(rows);
  Tensor gates = gates_of(params, scratch);
  if (gates) gates = gates.top(rows);
  const std::array<LinearPart, 4> in = {
      {{&w.q, nullptr, qg}, {&w.k, nullptr, k}, {&w.v, nullptr, v}, {&w.gate, nullptr, gates}}};
  ops.norm_linear(std::span(in).first(params.gate.separate() ? 4 : 3), normed, residual,
                  norm.weight, norm.eps);
  if (attend) {
    ops.store_attend(scratch.attended.top(rows), q, qg, k, v, gates, rope, w.norms, params, kv,
                     batch);
  } else {
    ops.qk_norm_rope_store(q, qg, k, v, rope, w.norms, params, kv, batch);
  }
}

void attention_store(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, Tensor rope,
                     const AttentionBlock& w, const AttentionParams& params, const KvLayer& kv,
                     const AttentionScratch& scratch, const Batch& batch) {
  const Tensor k = scratch.k.top(normed.rows);
  const Tensor v = scratch.v.top(normed.rows);
  const LinearPart in[] = {{&w.k, nullptr, k}, {&w.v, nullptr, v}};
  ops.norm_linear(in, normed, residual, norm.weight, norm.eps);
  AttentionParams keys = params;
  keys.heads = 0;
  ops.qk_norm_rope_store({}, {}, k, v, rope, w.norms, keys, kv, batch);
}

void attention_rows(Ops& ops, const AttentionParams& params, const KvLayer& kv,
                    const AttentionScratch& scratch, int32_t first_row, const Batch& part) {
  const auto rows = [&](const Tensor& t) { return t ? t.middle(first_row, part.tokens) : t; };
  ops.attention(rows(scratch.attended), rows(scratch.q), rows(gates_of(params, scratch)), params,
                kv, part);
}

void attention_out(Ops& ops, const BlockSum& sum, const AttentionBlock& w,
                   const AttentionScratch& scratch) {
  const LinearPart out[] = {{&w.output, nullptr, sum.y, sum.tail}};
  ops.linear(out, scratch.attended.top(sum.y.rows));
}

}  // namespace braid
