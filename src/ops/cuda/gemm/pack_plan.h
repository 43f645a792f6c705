// pack_plan.h -- form and size of a weight on the GPU, for kernels, for loading, and for plans on
// machines without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gguf/types.h"
#include "ops/cuda/both.h"
#include "ops/tensor.h"

namespace braid::cuda {

enum class Pack : uint8_t { f16, q8, q4k, q6k, q5, t4, fp4 };

inline constexpr int kUnitRows = 32;
inline constexpr int kUnitWidth = 256;
BRAID_BOTH constexpr int unit_bytes(Pack pack) {
  switch (pack) {
    case Pack::f16:
      return 16384;
    case Pack::q8:
      return 8192 + 512;
    case Pack::q4k:
      return 4096 + 384 + 128;
    case Pack::q6k:
      return 4096 + 2048 + 512 + 64;
    case Pack::q5:
      return 4096 + 1024 + 1024;
    case Pack::t4:
      return 4096 + 1024 + 32;
    case Pack::fp4:
      return 4096 + 1024;
  }
  return 0;
}

// Bytes of a half of a unit, and of the part of both halves.
BRAID_BOTH constexpr int half_bytes(Pack pack) {
  switch (pack) {
    case Pack::f16:
      return 8192;
    case Pack::q8:
      return 4096 + 256;
    case Pack::q4k:
      return 2048 + 192;
    case Pack::q6k:
      return 2048 + 1024 + 256;
    case Pack::q5:
      return 2048 + 512 + 512;
    case Pack::t4:
      return 2048 + 512 + 16;
    case Pack::fp4:
      return 2048 + 512;
  }
  return 0;
}
BRAID_BOTH constexpr int shared_bytes(Pack pack) { return unit_bytes(pack) - 2 * half_bytes(pack); }

Pack pack_of(GgmlType type);

// Types whose rows are looked up as the file has them; others become f32.
BRAID_BOTH constexpr bool has_raw_rows(GgmlType type) {
  switch (type) {
    case GgmlType::F32:
    case GgmlType::F16:
    case GgmlType::BF16:
    case GgmlType::Q8_0:
    case GgmlType::Q4_0:
    case GgmlType::Q4_1:
    case GgmlType::Q5_0:
    case GgmlType::Q5_1:
    case GgmlType::Q4_K:
    case GgmlType::Q5_K:
    case GgmlType::Q6_K:
    case GgmlType::IQ4_NL:
    case GgmlType::IQ4_XS:
    case GgmlType::MXFP4:
    case GgmlType::NVFP4:
      return true;
    default:
      return false;
  }
}

// Of the packed product, without scales of blocks and memory's alignment.
struct PackShape {
  Pack pack = Pack::f16;
  int64_t blocks = 0;  // 32-row blocks of one expert
  int x_units = 0;     // units along k
  int units = 0;       // x_units, twice that for f32 weights
};
PackShape pack_shape(const Weight& weight);

size_t product_bytes(const Weight& weight);
size_t table_row_bytes(const Weight& weight);

// What load_weights() allocates for `weight`.
size_t planned_bytes(const Weight& weight);

// Of weights with slots (expert_slots.h).
int64_t expert_bytes(const Weight& weight);  // of one expert, without scales
// Memory is mapped in pieces of this size.
inline constexpr size_t kMappedPiece = size_t{2} << 20;
constexpr size_t whole_pieces(size_t bytes) {
  return (bytes + kMappedPiece - 1) / kMappedPiece * kMappedPiece;
}
// Layers use two stagings by turns, so that one is filled while the other is read.
inline constexpr int kStagings = 2;
// A staging has the memory of the largest gate, up and down; `weights` have them in turn.
inline constexpr int kStackParts = 3;
struct StagingBytes {
  size_t part[kStackParts] = {};
  size_t sum() const { return part[0] + part[1] + part[2]; }
};
StagingBytes staging_bytes(std::span<Weight* const> weights);

}  // namespace braid::cuda
