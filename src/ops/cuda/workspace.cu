// workspace.cu -- sizes and places of the scratch of the ops of one GPU.
#include <algorithm>

#include "ops/cuda/attention/attention_common.h"
#include "ops/cuda/attention/head_rows.h"
#include "ops/cuda/attention/unit_kind.h"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/delta/delta_forms.h"
#include "ops/kv/kv_codec.h"

namespace braid::cuda {
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

// One layer's cells as f16, of the most and longest sequences, and the bands of a step.
SealedWorkspace place_sealed(Parts& parts, const Device::WorkspaceNeeds& needs, int32_t tokens,
                             int32_t sequences) {
  SealedWorkspace work;
  const int64_t stride = div_up<int64_t>(needs.max_context, kBlockTokens);
  work.tokens = tokens;
  work.image_blocks = sequences * stride + most_extra_blocks(tokens, sequences);
  work.block_bytes = int64_t{needs.kv_heads} * kBlockTokens * needs.head_dim * 2;
  work.k = parts.take<std::byte>(work.image_blocks * work.block_bytes);
  work.v = parts.take<std::byte>(work.image_blocks * work.block_bytes);
  Bands& bands = work.bands;
  bands.bands = most_bands(tokens, sequences, 0, 0, kMaxUncertain);
  work.table_entries = bands.bands * (stride + 1);
  work.table = parts.take<int32_t>(work.table_entries);
  for (int32_t** array : {&bands.first_row, &bands.rows, &bands.certain, &bands.context,
                          &bands.form_rows, &bands.exact_from, &bands.of_sequence})
    *array = parts.take<int32_t>(bands.bands);
  bands.of_row = parts.take<int32_t>(tokens);
  bands.sealed = parts.take<SealedSequence>(sequences + 1);
  return work;
}

SparseWorkspace place_sparse(Parts& parts, const Device::WorkspaceNeeds& needs, int32_t tokens) {
  SparseWorkspace work;
  work.slots = most_sparse_slots(tokens, needs.max_sequences);
  work.query_blocks = most_query_blocks(tokens);
  work.blocks = div_up(needs.max_context, kSparseBlock) + 1;
  const int64_t heads = needs.kv_heads;
  work.means = parts.take<uint16_t>(work.slots * heads * work.blocks * needs.head_dim);
  work.lists = parts.take<uint16_t>(work.query_blocks * heads * work.blocks);
  work.lengths = parts.take<int32_t>(work.query_blocks * heads);
  work.counts = parts.take<unsigned long long>(2);
  return work;
}

SequenceWorkspace place(Parts& parts, const Device::WorkspaceNeeds& needs) {
  SequenceWorkspace work;
  work.max_tokens = std::max(needs.max_tokens, 1);
  work.max_sequences = std::max(needs.max_sequences, 1);
  const int64_t sequences = work.max_sequences;
  work.counter_count = sequences * (needs.delta.key_heads + 1);
  work.counters = parts.take<int>(work.counter_count);

  // One sequence's tree over a long context needs many splits; many sequences fill the GPU anyway.
  work.partial_rows = std::clamp<int64_t>(8192 / sequences, 64, 512);
  const int64_t rows = sequences * needs.max_heads * work.partial_rows;
  work.partial_dim = needs.max_heads * needs.head_dim;
  work.partials = parts.take<float>(rows * needs.head_dim);
  work.partial_sums = parts.take<float>(rows * 2);
  if (needs.k_codec != nullptr)
    work.sealed = place_sealed(parts, needs, work.max_tokens, work.max_sequences);
  if (needs.sparse_prefill) work.sparse = place_sparse(parts, needs, work.max_tokens);
  work.arrivals = parts.take<int>(int64_t{work.most_sequences()} * needs.max_heads);

  const DeltaShape& delta = needs.delta;
  if (delta.key_heads > 0) {
    work.row_keys = parts.take<float>(sequences * 2 * delta.key_width());
    work.row_values = parts.take<float>(sequences * delta.value_width());
    work.row_gates = parts.take<float2>(sequences * delta.value_heads);
    work.row_qk = parts.take<float>(sequences * delta.key_heads);
    if (needs.max_drafts > 0)
      work.tree_row_count = delta_tree_floats(delta, sequences, needs.max_drafts);
    work.tree_rows = parts.take<float>(work.tree_row_count);
  }
  if (delta.key_heads > 0 && chunk_form_fits(delta) && work.max_tokens > kStepRows) {
    const int64_t tiles = delta_chunk_tiles(work.max_tokens, sequences) * 64;
    work.chunk_q = parts.take<uint16_t>(tiles * delta.key_width());
    work.chunk_k = parts.take<uint16_t>(tiles * delta.key_width());
    work.chunk_w = parts.take<uint16_t>(tiles * delta.value_width());
    work.chunk_u = parts.take<uint16_t>(tiles * delta.value_width());
    work.chunk_scores = parts.take<uint16_t>(tiles * delta.value_heads * 64);
    work.chunk_gates = parts.take<float>(tiles * delta.value_heads * 2);
  }
  return work;
}

}  // namespace

size_t sequence_bytes(const Device::WorkspaceNeeds& needs) {
  Parts parts(nullptr);
  place(parts, needs);
  return parts.bytes();
}

SequenceWorkspace place_sequence_workspace(void* base, const Device::WorkspaceNeeds& needs) {
  Parts parts(base);
  return place(parts, needs);
}

}  // namespace braid::cuda

namespace braid {

CudaOps::WorkspaceParts CudaOps::workspace_parts(const Device::WorkspaceNeeds& needs) const {
  const auto rounded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  return {rounded(cuda::sequence_bytes(needs)), rounded(cuda::gemm_bytes(context_, needs)),
          rounded(cuda::moe_bytes(needs)), rounded(cuda::top_k_bytes())};
}

Status CudaOps::accepts(const Device::WorkspaceNeeds& needs) {
  const auto refuse = [](const std::string& what) {
    return Error{ErrorKind::unsupported,
                 "the GPU's kernels do not take " + what + "; --device cpu does"};
  };
  if (needs.max_heads > 0 && (needs.head_dim > cuda::kMaxHeadDim || needs.head_dim % 8 != 0))
    return refuse("attention heads of " + std::to_string(needs.head_dim) +
                  " (multiples of 8 up to " + std::to_string(cuda::kMaxHeadDim) + ")");
  if (needs.k_codec != nullptr &&
      (needs.head_dim > cuda::kMostUnitWidth || needs.head_dim % cuda::kUnitWidthUnit != 0))
    return refuse("a KV cache of " + std::string(needs.k_codec->name) + " and " +
                  std::string(needs.v_codec->name) + " with heads of " +
                  std::to_string(needs.head_dim) + " (multiples of " +
                  std::to_string(cuda::kUnitWidthUnit) + " up to " +
                  std::to_string(cuda::kMostUnitWidth) + ")");
  if (needs.sparse_prefill && needs.head_dim != 128 && needs.head_dim != 256)
    return refuse("sparse attention with heads of " + std::to_string(needs.head_dim) +
                  " (128 or 256)");
  // Any block of threads may have 99 KB; some bytes are static.
  constexpr size_t kChoiceBytes = 99 * 1024 - 256;
  const int32_t sparse_blocks = cuda::div_up(needs.max_context, kSparseBlock) + 1;
  if (needs.sparse_prefill && cuda::choice_bytes(needs.head_dim, sparse_blocks) > kChoiceBytes)
    return refuse("sparse attention of " + std::to_string(needs.max_context) + " tokens (-c)");
  if (needs.experts > cuda::kMostExperts || needs.experts_used > cuda::kMostUsed)
    return refuse(std::to_string(needs.experts_used) + " of " + std::to_string(needs.experts) +
                  " experts (at most " + std::to_string(cuda::kMostUsed) + " of " +
                  std::to_string(cuda::kMostExperts) + ")");
  if (needs.delta.key_heads > 0 && !cuda::takes_delta(needs.delta))
    return refuse("recurrent layers with key heads of " + std::to_string(needs.delta.key_dim) +
                  ", value heads of " + std::to_string(needs.delta.value_dim) + " and " +
                  std::to_string(needs.delta.conv_width) + " taps");
  constexpr int kMostDrafts = std::min(cuda::kMaxUncertain, cuda::kMaxNodes);
  if (needs.max_drafts > kMostDrafts)
    return refuse(std::to_string(needs.max_drafts) +
                  " drafted tokens in a step of a sequence (at most " +
                  std::to_string(kMostDrafts) + ")");
  return {};
}

size_t CudaOps::workspace_bytes(const Device::WorkspaceNeeds& needs) const {
  return workspace_parts(needs).sum();
}

Result<size_t> CudaOps::reserve(Device& device, const Device::WorkspaceNeeds& needs) {
  needs_ = needs;
  const WorkspaceParts parts = workspace_parts(needs);
  BRAID_ASSIGN(workspace_, device.allocate(parts.sum(), "workspaces"));
  auto* at = static_cast<std::byte*>(workspace_.data());
  sequence_work_ = cuda::place_sequence_workspace(at, needs);
  gemm_work_ = at + parts.sequence;
  moe_work_ = gemm_work_ + parts.gemm;
  top_k_work_ = moe_work_ + parts.moe;
  return workspace_.size_bytes();
}

}  // namespace braid
