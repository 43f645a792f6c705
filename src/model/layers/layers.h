// layers.h -- the building blocks of a layer, as straight-line functions over Ops.
//
// A block norms `residual` [T, E] into `normed` [T, E], reads that, and adds its result to `residual`.
// Intermediate rows live in scratch tensors with room for the largest batch, taken at start; blocks run one
// after the other, so their scratch may overlap.
#pragma once

#include "model/model.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace braid {

// The norm before a block.
struct BlockNorm {
  const float* weight = nullptr;  // [E]
  float eps = 0;
};

struct AttentionScratch {
  Tensor qg;        // [T, H Dh]; [T, 2 H Dh] with joint gates
  Tensor k;         // [T, Hkv Dh]
  Tensor v;         // [T, Hkv Dh]
  Tensor gates;     // [T, H Dh] or [T, H]; empty unless gates are separate
  Tensor q;         // [T, H Dh]
  Tensor attended;  // [T, H Dh]
};

struct DeltaScratch {
  Tensor qkv;    // [T, C]
  Tensor z;      // [T, Hv Dv]
  Tensor alpha;  // [T, Hv]
  Tensor beta;   // [T, Hv]
  Tensor out;    // [T, Hv Dv]
};

struct MlpScratch {
  Tensor hidden;  // [T, F]
};

struct MoeScratch {
  Tensor logits;   // [T, Nx]
  Tensor ids;      // [T, Kx] i32
  Tensor weights;  // [T, Kx]
};

// Attention with rope over the paged cache, in three parts, since the middle one grows with the
// context and can be run some rows at a time. `rope` [T, dims] is this step's table.
// Norm, products, norms of heads, rope; the rows' keys and values go to their cells. `attend`: softmax over
// the cells too, for all rows; attention_rows is left out then.
void attention_in(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, Tensor rope,
                  const AttentionBlock& w, const AttentionParams& params, const KvLayer& kv,
                  const AttentionScratch& scratch, const Batch& batch, bool attend);
// Softmax over the cells, for the rows from first_row on that `part` describes.
void attention_rows(Ops& ops, const AttentionParams& params, const KvLayer& kv,
                    const AttentionScratch& scratch, int32_t first_row, const Batch& part);
// Of attention_in, only keys and values to the rows' cells: where nobody wants what the rows attend to.
void attention_store(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, Tensor rope,
                     const AttentionBlock& w, const AttentionParams& params, const KvLayer& kv,
                     const AttentionScratch& scratch, const Batch& batch);
// Back into the residual stream.
void attention_out(Ops& ops, Tensor residual, const AttentionBlock& w, const AttentionScratch& scratch);

// Gated delta rule.
void delta_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, const DeltaBlock& w,
                 const DeltaLayer& layer, const DeltaScratch& scratch, const Batch& batch);

// down(silu(gate x) * up x).
void mlp_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, const MlpBlock& w,
               const MlpScratch& scratch);

// Routed experts and the shared one. scratch.ids and scratch.weights hold the choice afterwards.
void moe_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, const MoeBlock& w,
               const FeedForwardConfig& config, const MoeScratch& scratch);

}  // namespace braid
