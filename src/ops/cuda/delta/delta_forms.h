// delta_forms.h -- the forms of delta_rule, for each other and for benchmarks.
#pragma once

#include "ops/cuda/delta/delta_common.h"

namespace braid::cuda {

// Token by token, for 2 to `most_rows` certain rows a sequence. Folds pending entries, ends folded.
void delta_step(Context& context, const DeltaArgs& args, int* counters, int most_rows);
// For more than kStepRows certain rows a sequence. `parts` selects launches, for benchmarks.
inline constexpr int kChunkIntra = 1, kChunkScan = 2;
void delta_chunks(Context& context, const SequenceWorkspace& work, const DeltaArgs& args,
                  int parts = kChunkIntra | kChunkScan);
// Tiles of the chunk form's workspace; monotonic in tokens and sequences.
int64_t delta_chunk_tiles(int64_t tokens, int64_t sequences);

// The ring form for sequences with one certain row and no uncertain ones: in one launch, or two.
bool one_launch_fits(const DeltaView& layer);
void delta_one_row(Context& context, const DeltaArgs& args);
struct DecodeRows {
  float* keys = nullptr;    // [S][Hk][2][Dk] normed q and k
  float* v = nullptr;       // [S][Hv][Dv]
  float2* gates = nullptr;  // [S][Hv] log decay, beta
  float* qk = nullptr;      // [S][Hk] q . k
};
void delta_decode(Context& context, const DeltaArgs& args, const DecodeRows& rows);
// All rows of sequences with at most one certain row; of others, later, the uncertain rows.
struct TreeRows {
  float* data = nullptr;
  int64_t count = 0;
};
void delta_tree(Context& context, const DeltaArgs& args, const TreeRows& rows);
// Floats of TreeRows for rings made for `most_uncertain` rows.
int64_t delta_tree_floats(const DeltaShape& shape, int64_t sequences, int32_t most_uncertain);

}  // namespace braid::cuda
