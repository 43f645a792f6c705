// delta_forms.h -- the forms behind delta_advance, for each other and for measuring them.
#pragma once

#include "ops/cuda/delta/delta_common.h"

namespace braid::cuda {

// Token by token, for sequences of at most `most_rows` certain rows.
void delta_step(Context& context, const DeltaArgs& args, int* counters, int most_rows);
// One certain row of each sequence, made ready for its states.
struct DecodeRows {
  float* keys = nullptr;    // [S][Hk][2][Dk] q and k, normalised
  float* v = nullptr;       // [S][Hv][Dv]
  float2* gates = nullptr;  // [S][Hv] decay factor, beta
  float* qk = nullptr;      // [S][Hk] q . k
};
// The same bytes for batches in which no sequence has more than one row, and many have one.
void delta_decode(Context& context, const DeltaArgs& args, const DecodeRows& rows);
// Chunks of 64 on tensor cores, for sequences of more than kStepRows certain rows.
// `parts`: which of its three launches run (1 prepare, 2 intra, 4 scan), for measuring them.
void delta_chunks(Context& context, const SequenceWorkspace& work, const DeltaArgs& args, int parts = 7);
// Tiles of the chunk form's workspace for a batch of `tokens`.
int64_t delta_chunk_tiles(int64_t tokens);

}  // namespace braid::cuda
