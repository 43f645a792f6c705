// delta_forms.h -- the two forms behind delta_advance, for each other and for measuring them.
#pragma once

#include "ops/cuda/delta_common.h"

namespace braid::cuda {

// Token by token, for sequences of at most `most_rows` certain rows.
void delta_step(Context& context, const DeltaArgs& args, int* counters, int most_rows);
// Chunks of 64 on tensor cores, for sequences of more than kStepRows certain rows.
void delta_chunks(Context& context, const SequenceWorkspace& work, const DeltaArgs& args);
// Tiles of the chunk form's workspace for a batch of `tokens`.
int64_t delta_chunk_tiles(int64_t tokens);

}  // namespace braid::cuda
