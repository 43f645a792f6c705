// gemm_args.h -- what the kernels of products are told: what all of them take, and what each kernel takes
// besides.
//
// Kernels get these structs by value. Nothing here owns memory; pointers are device memory. Weights:
// packed.h.
#pragma once

#include <cstdint>

#include "ops/cuda/gemm/packed.h"

namespace braid::cuda {

enum class Store : uint8_t {
  plain,     // y = p
  add,       // y += p
  gated,     // y = silu(p) * p_up, both from this launch
  gate_old,  // y = silu(p) * y: the up product is in y already
};

// Rows of one weight (and of its up twin when gated) in a launch. Blocks of gate and up alternate.
struct GemmPart {
  const uint8_t* units = nullptr;
  const uint8_t* up_units = nullptr;
  const float* scales = nullptr;
  const float* up_scales = nullptr;
  // The same of the shared expert, when it is in the list (GemmArgs::shared_expert).
  const uint8_t* shared_units = nullptr;
  const uint8_t* shared_up_units = nullptr;
  const float* shared_scales = nullptr;
  const float* shared_up_scales = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  int rows = 0;
  int first_block = 0;  // in the launch
  int expert_blocks = 0;
  DType y_type = DType::f32;
  Store store = Store::plain;
  // Not 0, gated parts only: y is OrderedRows of so many columns, and y_stride their width.
  uint16_t ordered_columns = 0;
};

inline constexpr int kMostParts = 8;

// y = x W^T for all parts, which have one x and one packed form.
struct GemmArgs {
  GemmPart parts[kMostParts];
  int part_count = 0;
  int blocks = 0;  // of all parts
  int units = 0;
  int x_units = 0;
  const Act* x = nullptr;  // rows 16-byte aligned, k a multiple of 8
  int64_t x_stride = 0;
  int k = 0;
  int tokens = 0;
  bool once = false;       // every weight is read once: it may leave the L2 cache first
  int shared_expert = -1;  // the id that means the shared expert
};

// Up to 8 x columns rows of one expert.
struct ExpertTile {
  int expert;
  int first;  // in the list of pairs
  int count;
};

// Tiles of rows of experts in device memory (moe.cu). With a list GemmArgs::tokens does not count.
struct ExpertList {
  const ExpertTile* tiles = nullptr;  // null: no list
  const int* tile_count = nullptr;
  const int* x_row = nullptr;  // row of x of each pair; null: the pair's own
  int tile_rows = 0;           // most of a tile
  int likely_tiles = 1;        // shapes the launch, never the result's meaning
  int most_tiles = 1;          // whatever the choice
  bool early = false;          // complete before the kernel before this one began
};

// x that is still to be normed (gemm_skinny_x.cuh): x = norm(residual) * weight.
struct SkinnyNorm {
  const float* residual = nullptr;  // null: x is there
  int64_t residual_stride = 0;      // a multiple of 4; the width is one of 8
  const float* weight = nullptr;
  float eps = 0;
  bool writes = false;  // x is to be written too
};
inline constexpr int kMostNormRows = 1;
inline constexpr int kMostNormWidth = 5120;

// ---- by kernel ----

struct SkinnyArgs : GemmArgs {
  SkinnyNorm norm;
};

// CTAs that share a tile leave parts of its sums in memory.
struct TiledArgs : GemmArgs {
  ExpertList list;
  float* partials = nullptr;     // [2 * grid][tile]; kMostLookedColumns: zero between launches
  unsigned* counters = nullptr;  // [8 * grid], zero between launches
};
struct MmaArgs : TiledArgs {
  int split = 1;  // warps that share 32 rows, each with every split-th 128 of k
};
struct WgmmaArgs : TiledArgs {
  int second_tile = 0;  // of two formats: the first tile of rows of the second
  bool paired = false;  // blocks run in clusters of two that share a tile (walks_in_pairs)
};

struct WideArgs : GemmArgs {
  float* partials = nullptr;  // [slices][blocks + ctas][kWideSumBytes / 4], zero between launches
};

struct GroupedArgs : GemmArgs {
  ExpertList list;
};
struct PersistentArgs : GroupedArgs {
  unsigned* claims = nullptr;  // [kClaims], zero between launches: work given to who comes first
};

// Grid and tile limits that size the workspace.
inline constexpr int kMostTileFloats = 256 * 128;
inline constexpr int kMostCtasPerProcessor = 1;
// Up to so many columns of a wgmma kernel, partials are zero between launches: no counters.
inline constexpr int kMostLookedColumns = 32;
inline constexpr int kMostLookedFloats = 8 * kUnitRows * kMostLookedColumns;
inline constexpr int kWideBytes = 128 * 1024;  // of sums in memory, a CTA (gemm_wide.cuh)
inline constexpr int kClaims = 4;

}  // namespace braid::cuda
