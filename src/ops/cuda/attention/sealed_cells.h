// sealed_cells.h -- layers that seal blocks (ops/state.h): encoding, and attention's image.
#pragma once

#include <span>

#include "ops/cuda/attention/row_bands.h"
#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace braid::cuda {

// For the largest step (row_bands.h). Every layer of a step overwrites it.
struct SealedWorkspace {
  std::byte* k = nullptr;  // f16 [image_blocks][KV heads][32][head_dim]
  std::byte* v = nullptr;
  int64_t image_blocks = 0;
  int64_t block_bytes = 0;  // of K, and of V
  int32_t* table = nullptr;
  int64_t table_entries = 0;
  int32_t tokens = 0;
  Bands bands = {};
};

// Encodes the blocks whose last cell certain rows of the batch have written.
void seal_filled(Context& context, const KvLayer& kv, const Batch& batch);
// Encodes the given blocks; cannot be recorded.
void seal_blocks(Context& context, const KvLayer& kv, std::span<const KvSeal> blocks);

// Replaces a layer and a batch for attention.
struct SealedStep {
  KvLayer image;
  Batch batch;  // its sequences are bands
  const int32_t* form_rows;
  const int32_t* exact_from;
  const int32_t* of_sequence;
};
SealedStep make_image(Context& context, const SealedWorkspace& work, const AttentionParams& params,
                      const KvLayer& kv, const Batch& batch);

}  // namespace braid::cuda
