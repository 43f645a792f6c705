// delta_chunk.cuh -- chunks of a batch, layout of tiles and fragments, for delta_chunk.cu.
#pragma once

#include "ops/cuda/delta/delta_common.h"
#include "ops/cuda/mma.h"

namespace braid::cuda {
namespace {

constexpr int kChunk = 64;
constexpr int kDim = 128;
constexpr int kPanel = kChunk * 64;   // numbers in 64 columns of a tile
constexpr int kWide = kChunk * kDim;  // numbers in a tile of 128 columns: two panels
constexpr int kGates = 2;

// Tiles are ordered by sequence and chunk. Missing rows of a chunk are zeros.
struct ChunkArgs {
  DeltaArgs a;
  __half* q;  // [tiles][Hk][128 columns]
  __half* k;
  __half* w;       // [tiles][Hv][128 columns]
  __half* u;       // [tiles][Hv][128 columns]
  __half* scores;  // [tiles][Hv][64 columns]
  float* gates;    // [tiles][Hv][2][64]: e^G, e^{G_n - G}
};

// Panels of 64 columns: 64 rows of 128 bytes, in 16-byte pieces swizzled by row modulo 8.
__device__ __forceinline__ int tile_at(int row, int column) {
  return column / 64 * kPanel + row * 64 + ((column / 8 % 8) ^ (row % 8)) * 8 + column % 8;
}

// A lane's accumulator pair in a panel: row + lane / 4 (row: a multiple of 8), columns 8 n + 2
// (lane % 4).
__device__ __forceinline__ int pair_at(int row, int n, int lane) {
  return row * 64 + ((lane / 4 * 72 + lane % 4 * 2) ^ n * 8);
}

// 0 if the step form takes the sequence.
__device__ inline int chunk_count(const Batch& batch, int s) {
  const int rows = batch.certain[s];
  if (rows <= kStepRows) return 0;
  const int position = batch.context[s] - rows;
  return (position + rows - 1) / kChunk - position / kChunk + 1;
}

__device__ inline int first_tile(const Batch& batch, int s) {
  int sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < s; i += 32) sum += chunk_count(batch, i);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
  return sum;
}

struct TileOwner {
  int s;  // -1: none
  int index;
};
__device__ inline TileOwner owner_of(const Batch& batch, int tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  for (int begin = 0; begin < batch.sequences; begin += 32) {
    const int count = begin + lane < batch.sequences ? chunk_count(batch, begin + lane) : 0;
    int sum = count;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kFullWarp, sum, offset);
      if (lane >= offset) sum += other;
    }
    const unsigned past = __ballot_sync(kFullWarp, before + sum > tile);
    if (past != 0) {
      const int of = __ffs(static_cast<int>(past)) - 1;
      return {begin + of, tile - before - __shfl_sync(kFullWarp, sum - count, of)};
    }
    before += __shfl_sync(kFullWarp, sum, 31);
  }
  return {-1, 0};
}

struct Run {
  int slot;
  int first_row;  // in the batch
  int rows;
  int position;  // of the first row
  // `row` of chunk `index`, counted from the run's first row; may lie outside of the run.
  __device__ int own(int index, int row) const {
    return (position / kChunk + index) * kChunk + row - position;
  }
};
__device__ inline Run run_of(const Batch& batch, int s) {
  const int rows = batch.certain[s];
  return {batch.slot[s], batch.first_row[s], rows, batch.context[s] - rows};
}

constexpr float kLog2E = 1.44269504f;
// Results below 2^-126 are zero.
__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float quick_silu(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + quick_exp2(-kLog2E * x)));
  return x * y;
}

__device__ __forceinline__ void pack_operand(uint32_t (&a)[4][4], const float (&c)[8][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    a[step][0] = pack_act(c[2 * step][0], c[2 * step][1]);
    a[step][1] = pack_act(c[2 * step][2], c[2 * step][3]);
    a[step][2] = pack_act(c[2 * step + 1][0], c[2 * step + 1][1]);
    a[step][3] = pack_act(c[2 * step + 1][2], c[2 * step + 1][3]);
  }
}

// A 16 x 16 fragment at (row, column), multiples of 16. The swizzle only flips bits of `of_lane`.
__device__ __forceinline__ uint32_t fragment_at(uint32_t tile, int row, int column,
                                                uint32_t of_lane) {
  return tile + column / 64 * (kPanel * 2) + row * 128 +
         (of_lane ^ static_cast<uint32_t>(column / 8 % 8 * 16));
}
__device__ __forceinline__ uint32_t lane_rows(int lane) {  // matrices 0, 1 in a column
  return lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
}
__device__ __forceinline__ uint32_t lane_columns(int lane) {  // matrices 0, 1 in a row
  return (lane / 16 * 8 + lane % 8) * 128 + (lane / 8 % 2 ^ lane % 8) * 16;
}
__device__ __forceinline__ void load_a(uint32_t (&a)[4], uint32_t tile, int row, int column,
                                       int lane) {
  load_matrices(a, fragment_at(tile, row, column, lane_rows(lane)));
}
__device__ __forceinline__ void load_a_transposed(uint32_t (&a)[4], uint32_t tile, int row,
                                                  int column, int lane) {
  load_matrices_transposed(a, fragment_at(tile, column, row, lane_columns(lane)));
}
// b[0], b[1] are columns 0-7 of the B operand, b[2], b[3] columns 8-15.
__device__ __forceinline__ void load_b(uint32_t (&b)[4], uint32_t tile, int k, int column,
                                       int lane) {
  load_matrices_transposed(b, fragment_at(tile, k, column, lane_rows(lane)));
}
__device__ __forceinline__ void load_b_transposed(uint32_t (&b)[4], uint32_t tile, int k,
                                                  int column, int lane) {
  load_matrices(b, fragment_at(tile, column, k, lane_columns(lane)));
}
__device__ __forceinline__ void mma_pair(float (&c0)[4], float (&c1)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[4]) {
  mma(c0, a, b[0], b[1], __half());
  mma(c1, a, b[2], b[3], __half());
}

}  // namespace
}  // namespace braid::cuda
