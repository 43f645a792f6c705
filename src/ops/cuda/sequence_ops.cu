// sequence_ops.cu -- CudaOps forwards to the free functions of sequence_ops.h; their workspace.
#include "ops/cuda/sequence_ops.h"

#include <algorithm>

#include "ops/cuda/attention_common.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta_forms.h"

namespace braid {
namespace cuda {
namespace {

// Walks the parts of the workspace; with a null base it only counts.
class Parts {
 public:
  explicit Parts(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + offset_;
    offset_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  size_t bytes() const { return offset_; }

 private:
  std::byte* base_;
  size_t offset_ = 0;
};

SequenceWorkspace place(Parts& parts, const Device::WorkspaceNeeds& needs) {
  SequenceWorkspace work;
  work.max_tokens = std::max(needs.max_tokens, 1);
  work.max_sequences = std::max(needs.max_sequences, 1);
  const int64_t sequences = work.max_sequences;
  work.counter_count = sequences * (2 * int64_t{needs.max_heads} + needs.delta.key_heads + 1);
  work.counters = parts.take<int>(work.counter_count);

  const int64_t rows = sequences * needs.max_heads * kPartialRows;
  work.partial_dim = needs.max_heads * needs.head_dim;
  work.partials = parts.take<float>(rows * needs.head_dim);
  work.partial_sums = parts.take<float>(rows * 2);

  const DeltaShape& delta = needs.delta;
  if (delta.key_heads > 0 && chunk_form_fits(delta) && work.max_tokens > kStepRows) {
    const int64_t tokens = work.max_tokens;
    const int64_t tiles = delta_chunk_tiles(tokens) * delta.value_heads;
    work.chunk_q = parts.take<uint16_t>(tokens * delta.key_width());
    work.chunk_k = parts.take<uint16_t>(tokens * delta.key_width());
    work.chunk_v = parts.take<uint16_t>(tokens * delta.value_width());
    work.chunk_inverse = parts.take<uint16_t>(tiles * 64 * 64);
    work.chunk_scores = parts.take<uint16_t>(tiles * 64 * 64);
    work.chunk_gates = parts.take<float>(tiles * 2 * 64);
    work.chunk_decay = parts.take<float>(sequences * delta.value_heads);
  }
  return work;
}

}  // namespace

size_t sequence_workspace_bytes(const Device::WorkspaceNeeds& needs) {
  Parts parts(nullptr);
  place(parts, needs);
  return parts.bytes();
}

SequenceWorkspace place_sequence_workspace(void* base, const Device::WorkspaceNeeds& needs) {
  Parts parts(base);
  return place(parts, needs);
}

}  // namespace cuda

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
