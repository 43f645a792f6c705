// sparse_choice.h -- which key blocks the query blocks of long prompts read (sparse_prefill.h).
//
// One kernel takes the means of key blocks, another the masses and the choice, for all sequences of
// a batch that take part. Query blocks have numbers without gaps that matter: those of a sequence
// follow from its first row, and never meet those of the next sequence.
#pragma once

#include <cstdint>

#include "ops/cuda/context.h"
#include "ops/device.h"

namespace braid::cuda {

struct AttentionArgs;

// Of one layer at a time. `counts` [2]: SparseCounts so far; zero at the start, then only grows.
struct SparseWorkspace {
  uint16_t* means = nullptr;   // f16 [slots][KV heads][blocks][head_dim]
  uint16_t* lists = nullptr;   // [query blocks][KV heads][blocks]: key blocks, ascending
  int32_t* lengths = nullptr;  // [query blocks][KV heads]
  unsigned long long* counts = nullptr;
  int32_t slots = 0;  // of sequences that take part
  int32_t query_blocks = 0;
  int32_t blocks = 0;  // of the longest sequence
};

// Whether attention of this layer and batch has a choice.
bool may_choose(const AttentionArgs& args);
// Fills args.sparse. `whole`: the batch whose sequences may have been cut into bands, which
// `of_sequence` names; null: no bands.
void choose_blocks(Context& context, const SparseWorkspace& work, const Batch& whole,
                   const int32_t* of_sequence, AttentionArgs& args);

// Bytes of dynamic shared memory that the choice takes.
size_t choice_bytes(int32_t head_dim, int32_t blocks);

}  // namespace braid::cuda
