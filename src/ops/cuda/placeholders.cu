// placeholders.cu -- ops that have no kernel yet. Whoever writes one removes it here; then this file goes.
#include "ops/cuda/cuda_ops.h"

namespace braid {

#define BRAID_NO_KERNEL BRAID_CHECK(!"this op has no kernel yet")

void CudaOps::add_norm(Tensor, Tensor, Tensor, const float*, float) { BRAID_NO_KERNEL; }
void CudaOps::rope_table(Tensor, const RopeParams&, const Batch&) { BRAID_NO_KERNEL; }
void CudaOps::qk_norm_rope_store(Tensor, Tensor, Tensor, Tensor, Tensor, const AttentionWeights&,
                                 const AttentionParams&, const KvLayer&, const Batch&) {
  BRAID_NO_KERNEL;
}
void CudaOps::attention(Tensor, Tensor, Tensor, const AttentionParams&, const KvLayer&, const Batch&) {
  BRAID_NO_KERNEL;
}
size_t CudaOps::attention_workspace_bytes(const cuda::Context&, const Device::WorkspaceNeeds&) { return 0; }
void CudaOps::delta_advance(Tensor, const DeltaInputs&, const DeltaWeights&, const DeltaLayer&,
                            const Batch&) {
  BRAID_NO_KERNEL;
}
void CudaOps::delta_peek(Tensor, DeltaJournal&, const DeltaInputs&, const DeltaWeights&, const DeltaLayer&,
                         const Batch&) {
  BRAID_NO_KERNEL;
}
void CudaOps::delta_commit(const DeltaLayer&, const DeltaJournal&, std::span<const AcceptedPath>) {
  BRAID_NO_KERNEL;
}
size_t CudaOps::delta_workspace_bytes(const cuda::Context&, const Device::WorkspaceNeeds&) { return 0; }
int32_t CudaOps::state_tile_columns(const DeltaShape& shape) { return shape.value_dim; }
void CudaOps::kv_move(const KvLayer&, std::span<const CellMove>, const Batch&) { BRAID_NO_KERNEL; }
void CudaOps::state_copy(const DeltaLayer&, int32_t, int32_t) { BRAID_NO_KERNEL; }
void CudaOps::block_copy(const KvLayer&, int32_t, int32_t) { BRAID_NO_KERNEL; }

}  // namespace braid
