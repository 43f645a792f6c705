// sequence_ops.cu -- CudaOps forwards to the free functions of sequence_ops.h.
#include "ops/cuda/sequence_ops.h"

#include "ops/cuda/cuda_ops.h"

namespace braid {

// Attention and delta share one workspace.
size_t CudaOps::attention_workspace_bytes(const cuda::Context&, const Device::WorkspaceNeeds& needs) {
  return cuda::sequence_workspace_bytes(needs);
}
size_t CudaOps::delta_workspace_bytes(const cuda::Context&, const Device::WorkspaceNeeds&) { return 0; }
int32_t CudaOps::state_tile_columns(const DeltaShape&) { return 1; }

void CudaOps::add_norm(Tensor y, Tensor residual, Tensor x, const float* weight, float eps) {
  cuda::add_norm(context_, y, residual, x, weight, eps);
}
void CudaOps::rope_table(Tensor table, const RopeParams& rope, const Batch& batch) {
  cuda::rope_table(context_, table, rope, batch);
}
void CudaOps::qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                                 const AttentionWeights& w, const AttentionParams& params, const KvLayer& kv,
                                 const Batch& batch) {
  cuda::qk_norm_rope_store(context_, q, qg, k, v, rope_table, w, params, kv, batch);
}
void CudaOps::attention(Tensor o, Tensor q, Tensor qg, const AttentionParams& params, const KvLayer& kv,
                        const Batch& batch) {
  cuda::attention(context_, cuda::place_sequence_workspace(attention_work_, needs_), o, q, qg, params, kv,
                  batch);
}
void CudaOps::store_attend(Tensor o, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                           const AttentionWeights& w, const AttentionParams& params, const KvLayer& kv,
                           const Batch& batch) {
  if (!cuda::store_attend(context_, cuda::place_sequence_workspace(attention_work_, needs_), o, qg, k, v,
                          rope_table, w, params, kv, batch))
    Ops::store_attend(o, q, qg, k, v, rope_table, w, params, kv, batch);
}
void CudaOps::delta_advance(Tensor o, const DeltaInputs& in, const DeltaWeights& w, const DeltaLayer& layer,
                            const Batch& batch) {
  cuda::delta_advance(context_, cuda::place_sequence_workspace(attention_work_, needs_), o, in, w, layer,
                      batch);
}
void CudaOps::delta_peek(Tensor o, DeltaJournal& journal, const DeltaInputs& in, const DeltaWeights& w,
                         const DeltaLayer& layer, const Batch& batch) {
  cuda::delta_peek(context_, o, journal, in, w, layer, batch);
}
void CudaOps::delta_commit(const DeltaLayer& layer, const DeltaJournal& journal,
                           std::span<const AcceptedPath> paths) {
  cuda::delta_commit(context_, layer, journal, paths);
}
void CudaOps::kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) {
  cuda::kv_move(context_, kv, moves, batch);
}
void CudaOps::state_copy(const DeltaLayer& layer, int32_t dst, int32_t src) {
  cuda::state_copy(context_, layer, dst, src);
}
void CudaOps::block_copy(const KvLayer& kv, int32_t dst, int32_t src) {
  cuda::block_copy(context_, kv, dst, src);
}

}  // namespace braid
