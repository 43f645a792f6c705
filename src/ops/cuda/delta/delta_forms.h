// delta_forms.h -- the forms behind delta_rule, for each other and for measuring them.
#pragma once

#include "ops/cuda/delta/delta_common.h"

namespace braid::cuda {

// Token by token, for sequences of 2 to `most_rows` certain rows: folds what is left, ends folded.
void delta_step(Context& context, const DeltaArgs& args, int* counters, int most_rows);
// Chunks of 64 on tensor cores, for sequences of more than kStepRows certain rows.
// `parts`: which of its launches run, for measuring them.
inline constexpr int kChunkIntra = 1, kChunkScan = 2;
void delta_chunks(Context& context, const SequenceWorkspace& work, const DeltaArgs& args,
                  int parts = kChunkIntra | kChunkScan);
// Tiles of the chunk form's workspace for a batch; never fewer for more tokens or sequences.
int64_t delta_chunk_tiles(int64_t tokens, int64_t sequences);

// The ring form. One certain row of each sequence that has one, none uncertain: by one launch, for few
// sequences of shapes that it fits, or by two.
bool one_launch_fits(const DeltaView& layer);
void delta_one_row(Context& context, const DeltaArgs& args);
struct DecodeRows {
  float* keys = nullptr;    // [S][Hk][2][Dk] q and k, normalised
  float* v = nullptr;       // [S][Hv][Dv]
  float2* gates = nullptr;  // [S][Hv] log decay, beta
  float* qk = nullptr;      // [S][Hk] q . k
};
void delta_decode(Context& context, const DeltaArgs& args, const DecodeRows& rows);
// All rows of sequences with at most one certain row, and the uncertain rows of the others, which come after
// the other forms. `rows`: what its first launch leaves for its second.
struct TreeRows {
  float* data = nullptr;
  int64_t count = 0;
};
void delta_tree(Context& context, const DeltaArgs& args, const TreeRows& rows);
// Numbers of TreeRows for rings made for `most_uncertain` rows.
int64_t delta_tree_floats(const DeltaShape& shape, int64_t sequences, int32_t most_uncertain);

}  // namespace braid::cuda
