// gemm_common.cuh -- work lists, loads of weights, and stores of sums of the product kernels.
//
// A half is 32 rows x 128 k of packed weights (packed.h). Work is the list of (tile, step along k),
// cut into one equal run per CTA. Parts of a tile that several CTAs share are added in order of k.
#pragma once

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/gemm/gemm_formats.cuh"
#include "ops/cuda/launch.h"

namespace braid::cuda {

struct Tile {
  int row_tile;
  int expert;
  int first;  // of the rows of x
  int count;
  int x_tile;  // index of the tile of rows of x
};

__device__ inline Tile locate(const TiledArgs& a, int tile, int row_tiles, int token_tiles,
                              int tile_rows) {
  if (a.list.tiles != nullptr) {
    const ExpertTile e = a.list.tiles[tile / row_tiles];
    return {tile % row_tiles, e.expert, e.first, e.count, tile / row_tiles};
  }
  const int first = tile % token_tiles * tile_rows;
  return {tile / token_tiles, 0, first, min(tile_rows, a.tokens - first), tile % token_tiles};
}

__device__ inline const GemmPart& part_of(const GemmArgs& a, const GemmPart* parts, int block) {
  int part = 0;
  while (part + 1 < a.part_count && block >= parts[part + 1].first_block) ++part;
  return parts[part];
}

// Null past the last block.
template <int kUnit>
__device__ inline const uint8_t* units_of(const GemmArgs& a, const GemmPart* parts, int expert,
                                          int block) {
  if (block >= a.blocks) return nullptr;
  const GemmPart& part = part_of(a, parts, block);
  int own = block - part.first_block;
  const bool shared = expert == a.shared_expert;
  const uint8_t* units = shared ? part.shared_units : part.units;
  if (part.store == Store::gated) {
    if (own & 1) units = shared ? part.shared_up_units : part.up_units;
    own >>= 1;
  }
  if (!shared) own += expert * part.expert_blocks;
  return units + static_cast<int64_t>(own) * a.units * kUnit;
}

struct RowTarget {
  const GemmPart* part = nullptr;  // null: this thread stores nothing
  int row = 0;
  float scale = 0;
  float up_scale = 0;
};
__device__ inline RowTarget target_of(const GemmArgs& a, const GemmPart* parts, int expert,
                                      int block, int row_in_block) {
  RowTarget t;
  if (block >= a.blocks) return t;
  const GemmPart* part = &part_of(a, parts, block);
  int own = block - part->first_block;
  if (part->store == Store::gated) {
    if (own & 1) return t;
    own >>= 1;
  }
  t.row = own * kUnitRows + row_in_block;
  if (t.row >= part->rows) return t;
  const bool shared = expert == a.shared_expert;
  const int at = shared ? own : expert * part->expert_blocks + own;
  t.scale = (shared ? part->shared_scales : part->scales)[at];
  if (part->store == Store::gated)
    t.up_scale = (shared ? part->shared_up_scales : part->up_scales)[at];
  t.part = part;
  return t;
}
__device__ inline bool needs_old(Store store) {
  return store == Store::add || store == Store::gate_old;
}
__device__ inline float old_value(const RowTarget& t, int64_t y_row) {
  const GemmPart& part = *t.part;
  return needs_old(part.store) ? load_as(part.y, part.y_type, y_row * part.y_stride + t.row) : 0;
}
__device__ inline float new_value(Store store, float value, float up_value, float old) {
  switch (store) {
    case Store::plain:
      break;
    case Store::add:
      return value + old;
    case Store::gated:
      return silu(value) * up_value;
    case Store::gate_old:
      return silu(value) * old;
  }
  return value;
}
__device__ inline void store_sum(const RowTarget& t, int64_t y_row, float sum, float up_sum,
                                 float old) {
  const GemmPart& part = *t.part;
  store_as(part.y, part.y_type, y_row * part.y_stride + t.row,
           new_value(part.store, sum * t.scale, up_sum * t.up_scale, old));
}
__device__ inline void store_sum(const RowTarget& t, int64_t y_row, float sum, float up_sum) {
  store_sum(t, y_row, sum, up_sum, old_value(t, y_row));
}

// Arrivals per warp at a stage's barrier: lane 0 for bulk copies, else each lane.
#if __CUDA_ARCH__ >= 900
inline constexpr int kLoadArrivals = 1;
#else
inline constexpr int kLoadArrivals = 32;
#endif

__device__ inline void init_ring(uint32_t full, int stages) {
  if (threadIdx.x % 32 != 0) return;
  for (int stage = 0; stage < stages; ++stage) init_barrier(full + 8 * stage, kLoadArrivals);
  publish_barriers();
}
// Parameters at a runtime index are slow to read: a copy in shared memory [kMostParts].
__device__ inline void copy_parts(uint32_t* words, const GemmArgs& a, int threads) {
  for (int i = static_cast<int>(threadIdx.x);
       i < static_cast<int>(sizeof(GemmPart)) / 4 * a.part_count; i += threads)
    words[i] = reinterpret_cast<const uint32_t*>(a.parts)[i];
}

// Slot: [2 * cta + (0: the tile holds the CTA's first step, 1: only its last)][floats].
struct Sharing {
  int64_t first_cta;
  int64_t last_cta;
  int64_t tile_begin;
  int64_t total;
  int64_t grid;

  __device__ bool shared() const { return first_cta != last_cta; }
  __device__ int64_t slot(int64_t cta) const {
    return 2 * cta + (total * cta / grid >= tile_begin ? 0 : 1);
  }
};
__device__ inline Sharing sharing_of(int tile, int steps, int64_t total, int64_t grid) {
  const int64_t begin = static_cast<int64_t>(tile) * steps;
  return {((begin + 1) * grid - 1) / total, ((begin + steps) * grid - 1) / total, begin, total,
          grid};
}
__device__ inline void add_to(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}

// An equal number of CTAs per tile, if that uses most of the GPU or there is little work; else all.
__device__ inline int64_t ctas_for(int tiles, int steps) {
  const int most = static_cast<int>(gridDim.x);
  if (tiles == 0 || tiles > most) return tiles == 0 ? 0 : most;
  const int even = tiles * min(most / tiles, steps);
  const bool little = static_cast<int64_t>(tiles) * steps < 4 * most;
  return little || even * 8 >= most * 7 ? even : most;
}

// Called after this CTA's part is written. CTAs whose run ends here wait for all parts and finish a
// share each. The wait ends: they have no work left, and all CTAs of a launch are resident.
template <int kThreads>
__device__ inline void finish_shared(const TiledArgs& a, const Sharing& s, const Tile& tile,
                                     int steps, bool run_ends, int tile_blocks,
                                     int64_t slot_floats) {
  const int thread = static_cast<int>(threadIdx.x);
  const int parts = static_cast<int>(s.last_cta - s.first_cta) + 1;
  const bool last_goes_on = s.total * (s.last_cta + 1) / s.grid > s.tile_begin + steps;
  const int finishers = parts - (last_goes_on ? 1 : 0);
  unsigned* arrived = a.counters + s.first_cta;
  unsigned* departed = a.counters + s.grid + s.first_cta;
  __threadfence();
  meet<kThreads>();
  if (thread == 0) {
    atomicAdd(arrived, 1u);
    if (run_ends) {
      while (*reinterpret_cast<volatile unsigned*>(arrived) < static_cast<unsigned>(parts)) {
      }
      __threadfence();
    }
  }
  if (!run_ends) return;
  meet<kThreads>();
  // A piece is 64 rows of one token. All reads of several pieces precede the stores.
  const int rows = tile_blocks * 32;
  const int pieces = rows / 64 * tile.count;
  const int own = static_cast<int>(blockIdx.x - s.first_cta);
  const int last = pieces * (own + 1) / finishers;
  constexpr int kAtOnce = kThreads >= 512 ? 1 : 4;  // few rows of x make few pieces
  constexpr int kStride = kThreads / 16;
  for (int piece = pieces * own / finishers + thread / 16; piece < last;
       piece += kAtOnce * kStride) {
    float4 sums[kAtOnce];
    float4 ups[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums[i] = ups[i] = make_float4(0, 0, 0, 0);
    const auto index_of = [&](int i) {
      const int at = min(piece + i * kStride, last - 1);
      return static_cast<int64_t>(at / (rows / 64)) * rows + at % (rows / 64) * 64 +
             thread % 16 * 4;
    };
    const bool up_too = a.parts[0].store == Store::gated && thread % 16 < 8;  // gated parts first
#pragma unroll 2
    for (int64_t cta = s.first_cta; cta <= s.last_cta; ++cta) {
      const float* from = a.partials + s.slot(cta) * slot_floats;
      float4 v[kAtOnce];
      float4 u[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[i] = __ldcg(reinterpret_cast<const float4*>(from + index_of(i)));
        if (up_too) u[i] = __ldcg(reinterpret_cast<const float4*>(from + index_of(i) + 32));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        add_to(sums[i], v[i]);
        if (up_too) add_to(ups[i], u[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = piece + i * kStride;
      if (at >= last) break;
      const int row = at % (rows / 64) * 64 + thread % 16 * 4;
      RowTarget target =
          target_of(a, a.parts, tile.expert, tile.row_tile * tile_blocks + row / 32, row % 32);
      if (target.part == nullptr) continue;
      const int64_t y_row = tile.first + at / (rows / 64);
      const float sum[4] = {sums[i].x, sums[i].y, sums[i].z, sums[i].w};
      const float up[4] = {ups[i].x, ups[i].y, ups[i].z, ups[i].w};
      const int left = target.part->rows - target.row;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        if (q < left) store_sum(target, y_row, sum[q], up[q]);
        ++target.row;
      }
    }
  }
  meet<kThreads>();
  if (thread == 0 && atomicAdd(departed, 1u) == static_cast<unsigned>(finishers) - 1) {
    *arrived = 0;
    *departed = 0;
  }
}

}  // namespace braid::cuda
