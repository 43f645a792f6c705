// workspace.h -- scratch of attention and the gated delta rule.
#pragma once

#include <cstddef>

#include "ops/cuda/attention/sealed_cells.h"
#include "ops/cuda/attention/sparse_choice.h"
#include "ops/cuda/device_math.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid::cuda {

// States are folded at multiples of this position (DeltaRing::every).
inline constexpr int kFoldEvery = 8;

// Placed once at start and zero-filled; `counters` and `arrivals` are zero again after every op.
struct SequenceWorkspace {
  int32_t max_tokens = 0;
  int32_t max_sequences = 0;

  int* counters = nullptr;  // arrivals of blocks: delta [S][key head]
  int64_t counter_count = 0;

  // Partial results [max_sequences][heads][partial_rows] of head_dim values, and (max, sum).
  float* partials = nullptr;
  float* partial_sums = nullptr;
  int64_t partial_rows = 0;
  int32_t partial_dim = 0;
  int* arrivals = nullptr;  // [most_sequences()][heads]

  SparseWorkspace sparse;  // without lists unless needs.sparse_prefill
  SealedWorkspace sealed;
  int32_t most_sequences() const {
    return max_sequences > sealed.bands.bands ? max_sequences : sealed.bands.bands;
  }

  // Delta, decode form (delta_forms.h, DecodeRows).
  float* row_keys = nullptr;
  float* row_values = nullptr;
  float2* row_gates = nullptr;
  float* row_qk = nullptr;

  float* tree_rows = nullptr;  // delta, rows with drafts (delta_forms.h, TreeRows)
  int64_t tree_row_count = 0;

  // Delta, chunk form: tiles of a chunk, f16 (delta_chunk.cuh).
  void* chunk_q = nullptr;  // [tiles][Hk][64][128]
  void* chunk_k = nullptr;
  void* chunk_w = nullptr;  // [tiles][Hv][64][128]
  void* chunk_u = nullptr;
  void* chunk_scores = nullptr;  // [tiles][Hv][64][64]
  float* chunk_gates = nullptr;  // [tiles][Hv][2][64]
};

size_t sequence_bytes(const Device::WorkspaceNeeds& needs);
// `base` is zero-filled and 256-byte aligned.
SequenceWorkspace place_sequence_workspace(void* base, const Device::WorkspaceNeeds& needs);

}  // namespace braid::cuda
