// gemm_skinny_plan.h -- the cut of a product of up to 8 rows (gemm_skinny.cuh), and its cost model.
#pragma once

#include <algorithm>

#include "ops/cuda/context.h"
#include "ops/cuda/gemm/gemm_args.h"

namespace braid::cuda {

inline constexpr int kSkinnyRows = 8;
// More stages leave less room for the next kernel: six make steps of one row 4 % slower.
inline constexpr int kSkinnyStages = 4;
inline constexpr int kMostSkinnyTasks = 8192;  // SkinnyPlan::by_row is exact up to here

// Divisors are powers of two, or the host divides: a late division costs a tenth of a half.
struct SkinnyShare {  // of the weights of one format
  int first = 0;      // 32-row block
  int clusters = 0;   // number of clusters
  int items = 0;      // of each cluster: stretches of y
  int more = 0;       // clusters that have one more
  int stages = 2;     // of a warp's ring
  int sources = 1;    // warps of a CTA that may share a block
  int x_bytes = 0;    // of shared memory
  int sums_bytes = 0;
  uint32_t source_of = 0;  // 4 bits of each warp: its number modulo sources
};
struct SkinnyPlan {
  SkinnyShare shares[2];         // one per format
  int slices_log2 = 0;           // of k: CTAs of a cluster
  int pair_log2 = 0;             // log2 of blocks per stretch: 2 blocks for gate and up
  int rows = 1;                  // of x
  int by_row = 1 << 16;          // n / rows = n * by_row >> 16
  bool beside_previous = false;  // may overlap the preceding kernel, but ends after it
};

struct alignas(16) SkinnyTarget {
  float scale, up_scale;
  int row;  // the first, in its part
  int part;
};

// CTAs of a cluster, along k, and CTAs per multiprocessor.
struct SkinnyCut {
  int slices = 1;
  int density = 2;
};

inline int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

struct SkinnyWork {
  int warps = 0, piece_bytes = 0;
  int64_t items = 0;  // 0: none
  int pair = 1, halves = 0, rows = 0;
  int sums_bytes = 0;  // of a half, beside x (gemm_skinny_pair.cuh)

  int64_t x_bytes(const SkinnyCut& cut) const {
    return int64_t{div_up(halves, cut.slices)} * (256 * rows + sums_bytes);
  }
  int64_t item_bytes() const { return int64_t{pair} * halves * piece_bytes; }
  int64_t most_bytes(int64_t clusters) const {
    return items == 0 ? 0 : div_up<int64_t>(items, clusters) * item_bytes();
  }
  // Warps that may share a block, in clusters with the fewest items, whose runs are shortest.
  int sources(int64_t clusters) const {
    const int64_t blocks = std::max<int64_t>(items / clusters, 1) * pair;
    return static_cast<int>(std::min<int64_t>(div_up<int64_t>(warps, blocks) + 1, warps));
  }
  int64_t stored(const SkinnyCut& cut, int64_t clusters) const {
    return div_up<int64_t>(div_up<int64_t>(items, clusters), cut.slices);
  }
  int64_t sums_bytes_of(const SkinnyCut& cut, int64_t clusters) const {
    return stored(cut, clusters) * pair * cut.slices * sources(clusters) * rows * 128;
  }
  int64_t exchange_bytes(const SkinnyCut& cut, int64_t clusters) const {
    return sums_bytes_of(cut, clusters) +
           stored(cut, clusters) * static_cast<int64_t>(sizeof(SkinnyTarget));
  }
  int64_t most_halves(const SkinnyCut& cut, int64_t clusters) const {
    return div_up<int64_t>(div_up<int64_t>(items, clusters) * pair * div_up(halves, cut.slices),
                           warps);
  }
  int64_t stage_bytes() const { return int64_t{warps} * piece_bytes; }
  bool fits(const SkinnyCut& cut, int64_t clusters, int64_t room) const {
    return items == 0 || (clusters > 0 && stored(cut, clusters) * kSkinnyRows <= kMostSkinnyTasks &&
                          x_bytes(cut) + exchange_bytes(cut, clusters) + 2 * stage_bytes() <= room);
  }
};

struct SkinnyChoice {
  SkinnyCut cut;
  int64_t clusters[2] = {0, 0};
  double clocks = 0;

  bool found() const { return clusters[0] > 0; }
};

double skinny_clocks(const Context& context, const SkinnyWork (&work)[2],
                     const SkinnyChoice& choice, int64_t at_once);
// Divides clusters between formats to minimize the largest load. False: there is no room.
bool share_out(const SkinnyWork (&work)[2], SkinnyChoice& choice, int64_t at_once, int64_t room);
// Fills in all but rows and beside_previous. Returns bytes of shared memory.
int64_t fill_plan(SkinnyPlan& plan, SkinnyWork (&work)[2], const SkinnyChoice& best,
                  int second_block, int64_t room);

}  // namespace braid::cuda
