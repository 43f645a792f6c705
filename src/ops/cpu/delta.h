// delta.h -- the parts of the gated delta rule that certain and uncertain rows share.
// A record has the data of one row for one key head and its r = Hv / Hk value heads, after
// convolution, SiLU and l2 norm: [q Dk][k Dk][v r * Dv][k . q, then padding to 16].
#pragma once

#include <cstdint>

#include "ops/cpu/scratch.h"
#include "ops/ops.h"

namespace braid::cpu {

inline int64_t delta_record_floats(const DeltaShape& shape) {
  const int64_t group = shape.value_heads / shape.key_heads;
  return (2 * shape.key_dim + group * shape.value_dim + 1 + 15) / 16 * 16;
}

inline int32_t delta_tile_columns(int32_t value_dim) {
  return value_dim % 32 == 0 ? 32 : value_dim;
}

// Floats of per-worker scratch for rows of either kind.
int64_t delta_scratch_floats(const DeltaShape& shape);
// Part of it, for uncertain rows: a tile of the state, and a row of it.
inline int64_t delta_draft_floats(const DeltaShape& shape) {
  return (int64_t{shape.key_dim} + 1) * delta_tile_columns(shape.value_dim);
}

// Fills record [rows]. histories [rows][conv_width]: raw convolution inputs (all channels) of the
// row and its predecessors, newest first; null before the start of the sequence.
struct DeltaPrepare {
  const DeltaShape* shape = nullptr;
  const float* conv = nullptr;  // [C][conv_width]
  int32_t key_head = 0;
  int32_t rows = 0;
  const float* const* histories = nullptr;
  float* records = nullptr;
};
void delta_prepare(const DeltaPrepare& args);

// Runs rows through one tile of a value head's state. o [rows] gets S^T q of the tile's columns.
struct DeltaTile {
  float* state = nullptr;  // [key_dim][columns]
  int64_t key_dim = 0;
  int64_t columns = 0;
  bool fresh = false;  // the state is zero, whatever the memory holds
  bool keeps = true;   // whether the state after the last row is stored
  int32_t rows = 0;
  const float* records = nullptr;
  int64_t record_floats = 0;
  int64_t v_offset = 0;   // of the tile's first column in a record
  int64_t kq_offset = 0;  // of k . q in a record
  const DeltaGate* gates = nullptr;
  float* o = nullptr;  // first column of the tile in row 0
  int64_t o_stride = 0;
  float* d = nullptr;  // gets d of ops.h; may be null
  int64_t d_stride = 0;
};
void delta_advance_tile(const DeltaTile& args);

// S = fold S + k d^T (d already divided by the decay) on one tile.
void delta_update_tile(float* state, int64_t key_dim, int64_t columns, const float* k,
                       const float* d, float fold);

// o [Dv] = rms(o; norm, eps) * silu(z)
void delta_gated_norm(float* o, const float* z, const float* norm, float eps, int64_t value_dim);

// The gate of a row, from its log decay and the stored decay before it.
DeltaGate delta_gate(float stored_decay, float log_decay, float beta);
inline float stored_decay(const DeltaGate& gate) { return gate.fold ? 1.0f : gate.decay; }

// g of ops.h, as entries keep it, and beta.
float delta_log_decay(float alpha, float dt, float a);
float delta_beta(float beta);

void delta_copy_channels(const DeltaShape& shape, int32_t key_head, float* dst, const float* src);

void delta_check_shapes(Tensor o, const DeltaInputs& in, const DeltaLayer& layer,
                        const Batch& batch);

}  // namespace braid::cpu
