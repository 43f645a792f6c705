// delta_forms.h -- the two forms behind delta_advance, for each other and for measuring them.
#pragma once

#include "ops/cuda/delta_common.h"

namespace braid::cuda {

// Token by token, for sequences of at most `most_rows` certain rows.
void delta_step(Context& context, const DeltaArgs& args, int* counters, int most_rows, bool stream = false);
// The same bytes for published shapes and enough heads to fill the GPU, by blocks that stay. False: not for
// this step.
bool delta_stream(Context& context, const DeltaArgs& args, int* counters, int most_rows);
// Chunks of 64 on tensor cores, for sequences of more than kStepRows certain rows.
// `parts`: which of its three launches run (1 prepare, 2 intra, 4 scan), for measuring them.
void delta_chunks(Context& context, const SequenceWorkspace& work, const DeltaArgs& args, int parts = 7);
// Tiles of the chunk form's workspace for a batch of `tokens`.
int64_t delta_chunk_tiles(int64_t tokens);

}  // namespace braid::cuda
