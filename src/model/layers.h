// layers.h -- the building blocks of a layer, as straight-line functions over Ops.
// A block norms `residual` [T, E] into `normed` [T, E], reads it, and gives its result to a
// BlockSum, usually the residual. Scratch of blocks may overlap.
#pragma once

#include "model/model.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace braid {

struct BlockNorm {
  const float* weight = nullptr;  // [E]
  float eps = 0;
};

// Where a block's closing product goes: it is added to the residual, or stored in a tensor that
// other ranks' are added to. `zeros` [T, E] f32 then initializes sums of experts.
struct BlockSum {
  Tensor y;
  Tail tail = Tail::add;
  Tensor zeros;
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

// Attention in three parts, because the middle one grows with the context and can run some rows at
// a time. attention_in stores keys and values; with `attend` it also does the work of
// attention_rows. `rope` [T, dims] is the step's table.
void attention_in(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, Tensor rope,
                  const AttentionBlock& w, const AttentionParams& params, const KvLayer& kv,
                  const AttentionScratch& scratch, const Batch& batch, bool attend);
// Softmax over the cells, for the rows of `part`, which start at first_row.
void attention_rows(Ops& ops, const AttentionParams& params, const KvLayer& kv,
                    const AttentionScratch& scratch, int32_t first_row, const Batch& part);
// Only stores keys and values, for rows whose attention is not needed.
void attention_store(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, Tensor rope,
                     const AttentionBlock& w, const AttentionParams& params, const KvLayer& kv,
                     const AttentionScratch& scratch, const Batch& batch);
void attention_out(Ops& ops, const BlockSum& sum, const AttentionBlock& w,
                   const AttentionScratch& scratch);

void delta_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm,
                 const DeltaBlock& w, const DeltaLayer& layer, const DeltaScratch& scratch,
                 const Batch& batch, const BlockSum& sum);

// down(silu(gate x) * up x).
void mlp_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, const MlpBlock& w,
               const MlpScratch& scratch, const BlockSum& sum);

// Routed experts and the shared one. Leaves the choice in scratch.ids and scratch.weights.
void moe_block(Ops& ops, Tensor residual, Tensor normed, const BlockNorm& norm, const MoeBlock& w,
               const FeedForwardConfig& config, const MoeScratch& scratch, const BlockSum& sum,
               const Batch& batch);

}  // namespace braid
