// gemm_args.h -- arguments of the product kernels, by value. Pointers are device memory, not owned.
#pragma once

#include <cstdint>

#include "ops/cuda/gemm/packed.h"

namespace braid::cuda {

enum class Store : uint8_t {
  plain,
  add,
  gated,     // y = silu(p) * p_up, both from this launch
  gate_old,  // y = silu(p) * y; y holds the up product
};

// Rows of one weight in a launch. If gated, blocks of gate and up alternate.
struct GemmPart {
  const uint8_t* units = nullptr;
  const uint8_t* up_units = nullptr;
  const float* scales = nullptr;
  const float* up_scales = nullptr;
  // The same of the shared expert, if the list has it (GemmArgs::shared_expert).
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
  // If not 0 (gated parts only), y is OrderedRows of that many columns; y_stride is their width.
  uint16_t ordered_columns = 0;
};

inline constexpr int kMostParts = 8;

// y = x W^T for all parts, which share x and the packed form.
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
  bool once = false;       // weights are read once: evict them from L2 first
  int shared_expert = -1;  // id of the shared expert
};

struct ExpertTile {
  int expert;
  int first;  // in the list of pairs
  int count;
};

// Device memory (moe.cu). With a list GemmArgs::tokens is unused.
struct ExpertList {
  const ExpertTile* tiles = nullptr;  // null: no list
  const int* tile_count = nullptr;
  const int* x_row = nullptr;  // row of x of each pair; null: the pair's own
  int tile_rows = 0;           // most rows of a tile
  int likely_tiles = 1;        // affects only the shape of the launch
  int most_tiles = 1;          // upper bound
  bool early = false;          // complete before the preceding kernel began
};

// x = norm(residual) * weight, still to be computed (gemm_skinny_x.cuh).
struct SkinnyNorm {
  const float* residual = nullptr;  // null: x is complete
  int64_t residual_stride = 0;      // a multiple of 4; the width is a multiple of 8
  const float* weight = nullptr;
  float eps = 0;
  bool writes = false;  // also write x
};
inline constexpr int kMostNormRows = 1;
inline constexpr int kMostNormWidth = 5120;

struct SkinnyArgs : GemmArgs {
  SkinnyNorm norm;
};

struct TiledArgs : GemmArgs {
  ExpertList list;
  float* partials = nullptr;     // [2 * grid][tile]; kMostLookedColumns: zero between launches
  unsigned* counters = nullptr;  // [8 * grid], zero between launches
};
struct MmaArgs : TiledArgs {
  int split = 1;  // warps per 32 rows, each with every split-th 128 of k
};
struct WgmmaArgs : TiledArgs {
  int second_tile = 0;  // the second format's first tile of rows
  bool paired = false;  // clusters of two blocks share a tile (walks_in_pairs)
};

struct WideArgs : GemmArgs {
  float* partials = nullptr;  // [slices][blocks + ctas][kWideSumBytes / 4], zero between launches
};

struct GroupedArgs : GemmArgs {
  ExpertList list;
};
struct PersistentArgs : GroupedArgs {
  unsigned* claims = nullptr;  // [kClaims], zero between launches: counters of dynamic work
};

inline constexpr int kMostTileFloats = 256 * 128;
inline constexpr int kMostCtasPerProcessor = 1;
// Up to this width of wgmma kernels, partials are zero between launches and need no counters.
inline constexpr int kMostLookedColumns = 32;
inline constexpr int kMostLookedFloats = 8 * kUnitRows * kMostLookedColumns;
inline constexpr int kWideBytes = 128 * 1024;  // of sums in memory, per CTA (gemm_wide.cuh)
inline constexpr int kClaims = 4;

}  // namespace braid::cuda
