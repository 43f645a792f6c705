// gemm_store.cuh -- from sums in mma fragments to y, and parts of sums in memory.
#pragma once

#include "ops/cuda/gemm/gemm_common.cuh"
#include "ops/cuda/mma.h"
#include "ops/cuda/ordered_rows.h"

namespace braid::cuda {

// Two sets of 16 rows, or 16 rows of gate and up.
struct WgmmaRows {
  RowTarget target;  // of the first row of the warp
  bool gated = false;

  // Copies the part to registers: parameters at an address are reread after each store.
  __device__ WgmmaRows with(const GemmPart& part) const {
    WgmmaRows rows = *this;
    rows.target.part = &part;
    return rows;
  }
};

__device__ inline bool gated_block(const GemmArgs& a, int block) {
  return block < a.blocks && part_of(a, a.parts, block).store == Store::gated;
}
__device__ inline WgmmaRows wgmma_rows(const GemmArgs& a, const Tile& tile, int block, bool gated) {
  WgmmaRows r;
  r.gated = gated;
  r.target = target_of(a, a.parts, tile.expert, gated ? block & ~1 : block, 0);
  if (gated) r.target.row += block % 2 * 16;
  return r;
}

__device__ inline uint32_t act_pair(float x, float y) {
  const __half2 pair = __halves2half2(to_act(x), to_act(y));
  return as_bits(pair);
}
// Rows g and g + 8, two tokens each, become row pairs of one token: 16 contiguous bytes.
__device__ inline void store_pairs(const WgmmaRows& r, int row, int64_t y_row, bool wanted,
                                   const float (&v)[4]) {
  const uint32_t low = transpose_matrix(act_pair(v[0], v[1]));
  const uint32_t high = transpose_matrix(act_pair(v[2], v[3]));
  const GemmPart& part = *r.target.part;
  row += static_cast<int>(threadIdx.x) % 4 * 2;
  Act* y = static_cast<Act*>(part.y) + y_row * part.y_stride + row;
  if (wanted && row < part.rows) *reinterpret_cast<uint32_t*>(y) = low;
  if (wanted && row + 8 < part.rows) *reinterpret_cast<uint32_t*>(y + 8) = high;
}

// Gated products go into rows or OrderedRows; a thread stores every eighth token.
struct GatedPlaces {
  char* at;  // of rows g; rows g + 8 are `apart` bytes further
  int apart;
  int step;   // bytes to the eighth token
  int until;  // tokens to the end of the tile of OrderedRows
  int tile;   // tokens per tile
  int over;   // bytes from the end of a tile to the same token of the next
  bool in[2];

  __device__ GatedPlaces(const WgmmaRows& r, int token) {
    const GemmPart& part = *r.target.part;
    const int row = r.target.row + static_cast<int>(threadIdx.x) % 4 * 2;
    in[0] = row < part.rows;
    in[1] = row + 8 < part.rows;
    if (part.ordered_columns == 0) {
      at = reinterpret_cast<char*>(static_cast<Act*>(part.y) + token * part.y_stride + row);
      apart = 16;
      step = static_cast<int>(16 * part.y_stride);
      until = tile = 1 << 30;
      over = 0;
      return;
    }
    const OrderedRows ordered{part.y, part.ordered_columns, static_cast<int>(part.y_stride)};
    at = reinterpret_cast<char*>(ordered_at(ordered, token, row));
    apart = reinterpret_cast<uintptr_t>(at) & 64 ? -64 : 64;  // swizzled pieces
    step = 1024;
    tile = ordered.columns;
    until = tile - token % tile;
    over = (ordered.width - 64) * 2 * tile;
  }
  __device__ void store(uint32_t low, uint32_t high, bool wanted) const {
    if (wanted && in[0]) *reinterpret_cast<uint32_t*>(at) = low;
    if (wanted && in[1]) *reinterpret_cast<uint32_t*>(at + apart) = high;
  }
  __device__ void next() {
    at += step;
    until -= 8;
    if (until > 0) return;
    at += over;
    until += tile;
  }
};

// Old values of y for Store::add: [set][group][row half, column].
template <int kSets, int kGroups>
__device__ inline void old_sums(const WgmmaRows& r, const Tile& tile, int first_group,
                                float (&old)[kSets][kGroups][4]) {
  const GemmPart& part = *r.target.part;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int left = tile.count - 8 * first_group;
  const int row = r.target.row + lane / 4;
  const int column = lane % 4 * 2;
  const bool add = part.y_type == DType::f32 && part.store == Store::add;
  const float* y = static_cast<const float*>(part.y) +
                   (tile.first + 8 * first_group + column) * part.y_stride + row;
#pragma unroll
  for (int set = 0; set < kSets; ++set)
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int down = 16 * set + e / 2 * 8;
        const bool wanted = row + down < part.rows && 8 * j + column + e % 2 < left;
        old[set][j][e] = add && wanted ? y[(8 * j + e % 2) * part.y_stride + down] : 0.0f;
      }
}

// Groups whose old sums load together: a load after a store waits a round trip.
template <int kGroups>
inline constexpr int kOldAtOnce = kGroups % 8 == 0                   ? 4
                                  : kGroups >= 6 && kGroups % 2 == 0 ? 2
                                                                     : 1;

// acc[set][group of 8 columns][4] to y, columns 8 * first_group on. `early`: from old_sums().
template <int kGroups, int kSets = 2>
__device__ inline void store_wgmma(const WgmmaRows& r, const Tile& tile, int first_group,
                                   const float (&acc)[2][kGroups][4],
                                   const float (*early)[kGroups][4] = nullptr) {
  if (r.target.part == nullptr) return;
  const GemmPart& part = *r.target.part;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int left = tile.count - 8 * first_group;  // columns
  const int64_t y_row = tile.first + 8 * first_group;
  const float s0 = r.target.scale;
  const float s1 = r.gated ? r.target.up_scale : s0;
  const bool pairs = part.y_type != DType::f32 && part.rows % 2 == 0 && part.y_stride % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(part.y) % 4 == 0;
  if (pairs && part.store == Store::gated) {
    GatedPlaces places(r, static_cast<int>(y_row) + lane / 4);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (8 * j >= left) break;
      float v[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float gate = acc[0][j][q] * s0;
        v[q] = __fdividef(gate, 1.0f + __expf(-gate)) * (acc[1][j][q] * s1);
      }
      places.store(transpose_matrix(act_pair(v[0], v[1])), transpose_matrix(act_pair(v[2], v[3])),
                   8 * j + lane / 4 < left);
      places.next();
    }
    return;
  }
  if (pairs && part.store == Store::plain) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (8 * j >= left) break;
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        const float v[4] = {acc[set][j][0] * s0, acc[set][j][1] * s0, acc[set][j][2] * s0,
                            acc[set][j][3] * s0};
        store_pairs(r, r.target.row + 16 * set, y_row + 8 * j + lane / 4, 8 * j + lane / 4 < left,
                    v);
      }
    }
    return;
  }
  const int row = r.target.row + lane / 4;
  const int column = lane % 4 * 2;
  if (part.y_type == DType::f32 && (part.store == Store::plain || part.store == Store::add)) {
    float* y = static_cast<float*>(part.y) + (y_row + column) * part.y_stride + row;
    constexpr int kAtOnce = kOldAtOnce<kGroups>;
#pragma unroll
    for (int first = 0; first < kGroups; first += kAtOnce) {
      if (8 * first >= left) break;
      float old[kSets][kAtOnce][4];
      if (early == nullptr) old_sums(r, tile, first_group + first, old);
#pragma unroll
      for (int set = 0; set < kSets; ++set)
#pragma unroll
        for (int j = first; j < first + kAtOnce; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int down = 16 * set + e / 2 * 8;
            const bool wanted = row + down < part.rows && 8 * j + column + e % 2 < left;
            const float before = early != nullptr ? early[set][j][e] : old[set][j - first][e];
            if (wanted) y[(8 * j + e % 2) * part.y_stride + down] = acc[set][j][e] * s0 + before;
          }
    }
    return;
  }
  for (int j = 0; j < kGroups; ++j) {
    if (8 * j >= left) break;
    float v[2][4] = {};
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (i == j) v[e / 4][e % 4] = acc[e / 4][i][e % 4];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if ((r.gated || kSets == 1) && e >= 4) break;
      RowTarget target = r.target;
      target.row = row + e / 2 * 8;
      if (target.row < part.rows && 8 * j + column + e % 2 < left)
        store_sum(target, y_row + 8 * j + column + e % 2, v[e / 4][e % 4], v[1][e % 4]);
    }
  }
}

// Parts are polled, without fences and counters. A word of 0 is not there yet, so words are stored
// inverted, and the reader clears each. A part is read once, by the thread of the same number.
__device__ inline void leave_part(uint4* to, const float (&v)[4]) {
  uint32_t words[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    words[q] = ~__float_as_uint(v[q]);
    if (words[q] == 0) words[q] = 0x80000000u;  // still a NaN
  }
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ inline uint4 look_at_part(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

}  // namespace braid::cuda
