// sequence_ops.h -- the ops that read and write what sequences own: norms and rotations, attention over
// cells, the gated delta rule, copies. Free functions that queue kernels; CudaOps forwards to them.
//
// Arguments are those of ops.h. Activations may be f32 or f16, each tensor by its own type; the residual
// stream, gates and tables are f32. Everything that Batch points to is device memory; only its T and S are
// read by the host. Rows that belong to no sequence (padding: cell -1, and sequences with rows = certain = 0)
// are left alone.
#pragma once

#include <cstddef>

#include "ops/cuda/primitives/context.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid::cuda {

// Scratch of these ops, placed once at start. Zero-filled then; `counters` and `arrivals` are zero again
// after every op.
struct SequenceWorkspace {
  int32_t max_tokens = 0;
  int32_t max_sequences = 0;

  int* counters = nullptr;  // arrivals of blocks: delta [S][key head]
  int64_t counter_count = 0;

  // Attention: partial results [max_sequences][heads][partial_rows] of head_dim values, (max, sum) beside
  // them.
  float* partials = nullptr;
  float* partial_sums = nullptr;
  int64_t partial_rows = 0;
  int32_t partial_dim = 0;
  int* arrivals = nullptr;  // [max_sequences][heads]

  // Delta, decode form (delta_forms.h, DecodeRows).
  float* row_keys = nullptr;
  float* row_values = nullptr;
  float2* row_gates = nullptr;
  float* row_qk = nullptr;

  // Delta, chunk form. Rows after convolution, SiLU and l2 norm, f16 [heads][T][128]; tiles f16
  // [chunks][Hv][64][64].
  void* chunk_q = nullptr;
  void* chunk_k = nullptr;
  void* chunk_v = nullptr;
  void* chunk_inverse = nullptr;
  void* chunk_scores = nullptr;
  float* chunk_gates = nullptr;  // [chunks][Hv][3][64]
  float* chunk_decay = nullptr;  // [S][Hv] stored decay after the last row
};

size_t sequence_workspace_bytes(const Device::WorkspaceNeeds& needs);
// `base` is zero-filled and 256-byte aligned.
SequenceWorkspace place_sequence_workspace(void* base, const Device::WorkspaceNeeds& needs);

// norm.cu
// The form in which the wgmma products read x (order_rows in gemm.cu), beside y.
struct OrderedRows {
  void* to = nullptr;  // null: not wanted
  int columns = 0;     // rows of a tile
};
// True: `ordered` is written too, if it is wanted.
bool add_norm(Context& context, Tensor y, Tensor residual, Tensor x, const float* weight, float eps,
              const OrderedRows& ordered = {});

// rope.cu
void rope_table(Context& context, Tensor table, const RopeParams& rope, const Batch& batch);
void qk_norm_rope_store(Context& context, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                        const AttentionWeights& w, const AttentionParams& params, const KvLayer& kv,
                        const Batch& batch);

// attention.cu
void attention(Context& context, const SequenceWorkspace& work, Tensor o, Tensor q, Tensor qg,
               const AttentionParams& params, const KvLayer& kv, const Batch& batch);
// Both in one launch; false, and nothing is done, for a batch or a shape that needs two.
bool store_attend(Context& context, const SequenceWorkspace& work, Tensor o, Tensor qg, Tensor k, Tensor v,
                  Tensor rope_table, const AttentionWeights& w, const AttentionParams& params,
                  const KvLayer& kv, const Batch& batch);

// delta_step.cu, delta_chunk.cu, delta_peek.cu
void delta_advance(Context& context, const SequenceWorkspace& work, Tensor o, const DeltaInputs& in,
                   const DeltaWeights& w, const DeltaLayer& layer, const Batch& batch);
void delta_peek(Context& context, Tensor o, DeltaJournal& journal, const DeltaInputs& in,
                const DeltaWeights& w, const DeltaLayer& layer, const Batch& batch);
void delta_commit(Context& context, const DeltaLayer& layer, const DeltaJournal& journal,
                  std::span<const AcceptedPath> paths);

// copies.cu
void kv_move(Context& context, const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch);
void state_copy(Context& context, const DeltaLayer& layer, int32_t dst, int32_t src);
void block_copy(Context& context, const KvLayer& kv, int32_t dst, int32_t src);

}  // namespace braid::cuda
