// gemm_wide_plan.h -- which products of 9 to 16 rows gemm_wide.cuh takes, and their cut.
#pragma once

#include "ops/cuda/context.h"
#include "ops/cuda/gemm/gemm_args.h"

namespace braid::cuda {

inline constexpr int kWideWarps = 12;
inline constexpr int kWideThreads = 32 * kWideWarps;
inline constexpr int kWideStages = 4;  // most stages of a warp's ring
inline constexpr int kMostWideRows = 16;
inline constexpr int kWideTiles = kMostWideRows / 8;          // of 8 rows of x
inline constexpr int kWideSumBytes = kMostWideRows * 32 * 4;  // of a 32-row block
inline constexpr int kMostWideItems = 32;                     // that a CTA stores a share of
inline constexpr int kMostWideEntries = 256;                  // of them: (slice, block)

// Blocks of one format, in the order of the launch.
struct WideBlocks {
  int count = 0;
  int piece_bytes = 0;
  int piece_halves = 1;  // of a unit, that a warp loads at a time
};

struct WideProduct {
  WideBlocks formats[2];
  int pair = 1;   // blocks of an item: 2 for gate and up
  int units = 0;  // along k
};

// The host divides: late divisions would cost the start of a kernel a microsecond.
struct WideCut {
  int units = 0;               // along k
  uint64_t run = 0;            // cost of a warp's run, 32 fractional bits
  uint64_t warps = 0;          // warps per cost, 32 fractional bits
  uint32_t by_pieces[2] = {};  // 2^32 / pieces of a block, by format
};
struct WidePlan {
  WideCut cuts[2];           // of the first slices, which have one more unit; of the others
  int longer = 0;            // number of the first
  int slices = 1;            // of k
  int by_slices = 0;         // 2^16 / slices
  int ctas = 1;              // of a slice
  int blocks = 0;            // of 32 rows of W
  int second = 0;            // the first of the second format
  int unit_log2[2] = {};     // pieces of a unit, by format
  int cost[2] = {};          // of a piece
  uint32_t by_cost[2] = {};  // 2^32 / cost
  int pair_log2 = 0;         // log2 of blocks per item: 2 blocks for gate and up
  int by_entries = 0;        // 2^16 / (slices * blocks of an item)
  uint32_t tasks = 0;        // of a CTA, 16 fractional bits: 16 rows of an item x 8 rows of x
  int stages = 2;            // of a warp's ring
  int stage_bytes = 0;
  int x_bytes = 0;  // of shared memory
  int grid = 0;
  int shared_bytes = 0;
};

// False: another kernel takes the product.
bool plan_wide(const Context& context, const WideProduct& product, WidePlan& plan);

}  // namespace braid::cuda
