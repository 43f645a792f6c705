// attention.h -- kernels of attention, over one block of 32 positions at a time.
// Online softmax keeps (max, sum, acc) of the positions so far. A block raises max, scales sum and
// acc by e^(old - new), and adds its own. An empty result has max = kNoScore, sum = 0, acc = 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"

namespace braid::cpu {

// Finite, so that e^(max - max) is 1 before the first position.
inline constexpr float kNoScore = -1e30f;

// Per-worker scratch (`heads`: most per KV head) and shared partial results.
int64_t attention_scratch_floats(int64_t heads, int64_t head_dim);
int64_t attention_partial_floats(int64_t heads, int64_t head_dim, int64_t max_context,
                                 int64_t max_tokens);

// ---- Few rows: lanes are dims.

// A running result of one head: [max, sum, padding to 16][acc head_dim].
inline constexpr int64_t kPartialHeader = 16;
inline int64_t partial_floats(int64_t head_dim) { return kPartialHeader + head_dim; }

// K or V of a block: 32 rows or, with `codec`, a unit that is read from its codes (ops/cpu/kv).
struct DecodeSide {
  KvFormat format = KvFormat::f16;
  const KvCodec* codec = nullptr;
  const std::byte* block = nullptr;
  const std::byte* next = nullptr;  // next block of the same kind, to be prefetched; or null
};

// `heads` query heads of one row that share a KV head, over positions first .. last-1 of a block.
struct DecodeBlock {
  DecodeSide k;
  DecodeSide v;
  int32_t heads = 0;
  int32_t head_dim = 0;
  float scale = 0;
  const float* q = nullptr;  // [heads][head_dim]
  int32_t first = 0;
  int32_t last = 0;
  float* partials = nullptr;  // [heads] running results
  int64_t partial_stride = 0;
};
void decode_block(const DecodeBlock& block);
void decode_clear(float* partial, int64_t head_dim);
void decode_finish(float* o, const float* partials, int64_t count, int64_t stride,
                   int64_t head_dim);

// ---- Many rows: lanes are rows, 16 of them a panel.

inline constexpr int64_t kPanelRows = 16;

// f32 copy of a block of K or V, [32][padded_dim(head_dim)]; padding spreads a column over L1 sets.
inline int64_t padded_dim(int64_t head_dim) { return head_dim + 16; }
void expand_block(float* out, const std::byte* rows, KvFormat format, int64_t head_dim,
                  int32_t count);

// 16 rows: q and acc [head_dim][16], the rest [16].
struct Panel {
  float* q = nullptr;  // scaled by AttentionParams::scale
  float* acc = nullptr;
  float* max = nullptr;
  float* sum = nullptr;
  int32_t* position = nullptr;  // of each row; missing rows repeat an existing one
  int32_t first_position = 0;   // smallest
  int32_t last_position = 0;    // largest
};
// Positions begin .. begin+31; `params` limits what a row sees (window, first_cell).
void panel_block(const Panel& panel, const float* k, const float* v, float* scores,
                 int64_t head_dim, int32_t begin, const AttentionParams& params);
// scores [32][16] = K q, for the q of a panel.
void panel_scores(float* scores, const float* q, const float* k, int64_t head_dim);
void panel_clear(const Panel& panel, int64_t head_dim);
// get_rows skips rows whose o is null.
void panel_set_rows(const Panel& panel, const float* const* q, float scale, int64_t head_dim);
void panel_get_rows(const Panel& panel, float* const* o, int64_t head_dim);

void apply_gate(float* o, const float* gate, AttentionGate::Act act, int64_t head_dim);
void apply_head_gate(float* o, float gate, AttentionGate::Act act, int64_t head_dim);

}  // namespace braid::cpu
