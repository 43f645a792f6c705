// gemm_wide_plan.h -- which products of 9 to 16 rows gemm_wide.cuh takes, and how one is cut: the plan that
// the kernel gets, and what the host weighs to make it.
#pragma once

#include "ops/cuda/gemm/gemm_args.h"
#include "ops/cuda/primitives/context.h"

namespace braid::cuda {

inline constexpr int kWideWarps = 12;    // that multiply
inline constexpr int kWideSumWarps = 4;  // that add up what the others leave
inline constexpr int kWideThreads = 32 * (kWideWarps + kWideSumWarps);
inline constexpr int kWideStages = 4;  // of a warp's ring, at most
inline constexpr int kMostWideRows = 16;
inline constexpr int kWideTiles = kMostWideRows / 8;                // of 8 rows of x
inline constexpr int kWideSumBytes = kMostWideRows * 32 * 4;        // of a block
inline constexpr int kMostWideVisits = kWideBytes / kWideSumBytes;  // of a CTA

struct WidePlan {
  int items = 0;      // of each cluster: 32-row blocks, or pairs of them
  int more = 0;       // clusters that have one more
  int slices = 1;     // of k: CTAs of a cluster
  int pair_log2 = 0;  // blocks of an item: 2 for gate and up
  int stages = 2;     // of a warp's ring
  int x_bytes = 0;    // of shared memory
  int visits = 0;     // room of a CTA for sums of (block, warp)
  int grid = 0;
  int shared_bytes = 0;
};

// items: of `pair` blocks of 32 rows x `halves` times 128 k, piece_bytes each. False: another kernel's.
bool plan_wide(const Context& context, int64_t items, int pair, int halves, int piece_bytes, WidePlan& plan);

}  // namespace braid::cuda
