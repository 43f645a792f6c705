// delta_chunk_scan.cuh -- the third kernel of delta_chunk.cu: a state through the chunks of its sequence.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/delta/delta_chunk.cuh"

namespace braid::cuda {
namespace {

__device__ float quick_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

constexpr int kHalfDim = kDim / 2;        // value columns of a block
constexpr int kOutStride = kHalfDim + 4;  // floats

struct Stage {
  __half k[kChunk * kWideStride];
  __half q[kChunk * kWideStride];
  __half v[kChunk * kTileStride];
  __half z[kChunk * kTileStride];  // if z is f16
  __half inverse[kChunk * kTileStride];
  __half scores[kChunk * kTileStride];
  float gates[kGates][kChunk];
};

struct ScanShared {
  Stage stage[2];
  float o[kChunk * kOutStride];
  float warp_squares[4][kChunk];
  float inverse[kChunk];        // of the root mean squares of the rows
  float squares[2][2][kChunk];  // [chunk % 2][rank][row]
};

// What is marked as perhaps unused serves scan_kernel, which has code for compute capability 9.0 and up
// alone.
[[maybe_unused]] __device__ void load_stage(const ChunkArgs& args, Stage& stage, int h, int key_head,
                                            int column0, int tile, const Chunk& chunk) {
  const int64_t key_rows = static_cast<int64_t>(key_head) * args.max_tokens * kDim;
  copy_rows<kDim, 128>(stage.k, kWideStride, args.k + key_rows, chunk);
  copy_rows<kDim, 128>(stage.q, kWideStride, args.q + key_rows, chunk);
  copy_rows<kHalfDim, 128>(stage.v, kTileStride,
                           args.v + static_cast<int64_t>(h) * args.max_tokens * kDim + column0, chunk);
  const Tensor& z = args.a.in.z;
  if (z.type != DType::f32) {
    copy_rows<kHalfDim, 128>(stage.z, kTileStride,
                             static_cast<const __half*>(z.data) + static_cast<int64_t>(h) * kDim + column0,
                             chunk, z.stride);
  }
  const int64_t matrix = (static_cast<int64_t>(tile) * args.a.layer.value_heads + h) * kChunk * kChunk;
  for (int i = threadIdx.x; i < kChunk * kChunk / 8; i += 128) {
    const int row = i / (kChunk / 8);
    const int column = i % (kChunk / 8) * 8;
    copy_async(shared_address(stage.inverse + row * kTileStride + column), args.inverse + matrix + i * 8);
    copy_async(shared_address(stage.scores + row * kTileStride + column), args.scores + matrix + i * 8);
  }
  const float* gates =
      args.gates + (static_cast<int64_t>(tile) * args.a.layer.value_heads + h) * kGates * kChunk;
  if (threadIdx.x < kGates * kChunk / 4)
    copy_async(shared_address(&stage.gates[0][0] + threadIdx.x * 4), gates + threadIdx.x * 4);
}

// C [16, 64] += A [16, 64] B^T, B [64, 64] lower triangular in shared memory: row i of B is column i of B^T.
[[maybe_unused]] __device__ void times_lower(float (&c)[8][4], const uint32_t (&a)[4][4], uint32_t base,
                                             int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int n = step; n < 4; ++n) {
      uint32_t b[4];
      const int row = n * 16 + lane / 16 * 8 + lane % 8;
      load_matrices(b, base + (row * kTileStride + step * 16 + lane / 8 % 2 * 8) * 2);
      mma(c[2 * n], a[step], b[0], b[1], __half());
      mma(c[2 * n + 1], a[step], b[2], b[3], __half());
    }
  }
}

// ks = S K^T, qs = S Q^T.
__device__ __forceinline__ void times_keys_and_queries(float (&ks)[8][4], float (&qs)[8][4],
                                                       const float (&state)[16][4], uint32_t k_base,
                                                       uint32_t q_base, int lane) {
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint32_t a[4] = {pack(state[2 * step][0], state[2 * step][1], __half()),
                           pack(state[2 * step][2], state[2 * step][3], __half()),
                           pack(state[2 * step + 1][0], state[2 * step + 1][1], __half()),
                           pack(state[2 * step + 1][2], state[2 * step + 1][3], __half())};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int row = n * 16 + lane / 16 * 8 + lane % 8;
      const uint32_t offset = (row * kWideStride + step * 16 + lane / 8 % 2 * 8) * 2;
      uint32_t b[4];
      load_matrices(b, k_base + offset);
      mma(ks[2 * n], a, b[0], b[1], __half());
      mma(ks[2 * n + 1], a, b[2], b[3], __half());
      load_matrices(b, q_base + offset);
      mma(qs[2 * n], a, b[0], b[1], __half());
      mma(qs[2 * n + 1], a, b[2], b[3], __half());
    }
  }
}

// R^T = b (V^T - e^G KS), as A operand of the next product; QS takes e^G on the way.
__device__ __forceinline__ void residuals(uint32_t (&r)[4][4], const float (&ks)[8][4], float (&qs)[8][4],
                                          const Stage& st, int lane, int column) {
  const uint32_t v_base = shared_address(st.v);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t v[4];  // V^T: columns (values) 0-7 and 8-15 of the warp, tokens 0-7 and 8-15 of the step
    const int row = step * 16 + lane / 16 * 8 + lane % 8;
    load_matrices_transposed(v, v_base + (row * kTileStride + column + lane / 8 % 2 * 8) * 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = 2 * step + half;
      const int token = n * 8 + lane % 4 * 2;
      const float2 e = *reinterpret_cast<const float2*>(&st.gates[0][token]);
      const float2 beta = *reinterpret_cast<const float2*>(&st.gates[2][token]);
      const float e0 = e.x, e1 = e.y;
      const float2 low = unpack(v[2 * half], __half());
      const float2 high = unpack(v[2 * half + 1], __half());
      r[step][2 * half] = pack(beta.x * (low.x - e0 * ks[n][0]), beta.y * (low.y - e1 * ks[n][1]), __half());
      r[step][2 * half + 1] =
          pack(beta.x * (high.x - e0 * ks[n][2]), beta.y * (high.y - e1 * ks[n][3]), __half());
      qs[n][0] *= e0;
      qs[n][1] *= e1;
      qs[n][2] *= e0;
      qs[n][3] *= e1;
    }
  }
}

// Outputs, not yet normalised, and the sums of their squares over the warp's columns.
__device__ __forceinline__ void store_scan(float* o, float* warp_squares, const float (&qs)[8][4], int lane,
                                           int column) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int token = n * 8 + lane % 4 * 2;
    const int at = column + lane / 4;
    o[token * kOutStride + at] = qs[n][0];
    o[(token + 1) * kOutStride + at] = qs[n][1];
    o[token * kOutStride + at + 8] = qs[n][2];
    o[(token + 1) * kOutStride + at + 8] = qs[n][3];
    float squares[2] = {fmaf(qs[n][0], qs[n][0], qs[n][2] * qs[n][2]),
                        fmaf(qs[n][1], qs[n][1], qs[n][3] * qs[n][3])};
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      squares[0] += __shfl_xor_sync(kFullWarp, squares[0], offset);
      squares[1] += __shfl_xor_sync(kFullWarp, squares[1], offset);
    }
    if (lane < 4) *reinterpret_cast<float2*>(warp_squares + token) = {squares[0], squares[1]};
  }
}

// S^T = e^{G_n} S^T + (e^{G_n - G} D)^T K
__device__ __forceinline__ void update_state(float (&state)[16][4], const float (&d)[8][4], const Stage& st,
                                             uint32_t k_base, int lane) {
  const float whole = st.gates[0][kChunk - 1];
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state[n][i] *= whole;
  }
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = 2 * step + half;
      const float2 e = *reinterpret_cast<const float2*>(&st.gates[1][n * 8 + lane % 4 * 2]);
      const float e0 = e.x, e1 = e.y;
      a[2 * half] = pack(e0 * d[n][0], e1 * d[n][1], __half());
      a[2 * half + 1] = pack(e0 * d[n][2], e1 * d[n][3], __half());
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {  // 16 keys
      uint32_t b[4];
      const int row = step * 16 + lane / 8 % 2 * 8 + lane % 8;
      load_matrices_transposed(b, k_base + (row * kWideStride + n * 16 + lane / 16 * 8) * 2);
      mma(state[2 * n], a, b[0], b[1], __half());
      mma(state[2 * n + 1], a, b[2], b[3], __half());
    }
  }
}

// One chunk through the state of a warp's 16 columns. Outputs go to `o` [row][column], not yet normalised.
// `ready` is called between the outputs and the update of the state.
template <typename Ready>
__device__ void scan_chunk(float (&state)[16][4], const Stage& st, float* o, float* warp_squares, int lane,
                           int column, Ready ready) {
  const uint32_t k_base = shared_address(st.k);
  const uint32_t q_base = shared_address(st.q);
  float ks[8][4] = {};
  float qs[8][4] = {};
  times_keys_and_queries(ks, qs, state, k_base, q_base, lane);
  uint32_t r[4][4];
  residuals(r, ks, qs, st, lane, column);
  float d[8][4] = {};
  times_lower(d, r, shared_address(st.inverse), lane);
  uint32_t packed[4][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    packed[step][0] = pack(d[2 * step][0], d[2 * step][1], __half());
    packed[step][1] = pack(d[2 * step][2], d[2 * step][3], __half());
    packed[step][2] = pack(d[2 * step + 1][0], d[2 * step + 1][1], __half());
    packed[step][3] = pack(d[2 * step + 1][2], d[2 * step + 1][3], __half());
  }
  times_lower(qs, packed, shared_address(st.scores), lane);
  store_scan(o, warp_squares, qs, lane, column);
  ready();
  update_state(state, d, st, k_base, lane);
}

[[maybe_unused]] __device__ void store_ring(const DeltaArgs& a, int slot, int first, int rows, int position,
                                            int channel, int count) {
  for (int c = threadIdx.x; c < 4 * count; c += blockDim.x) {
    const int row = rows - 4 + c / count;
    a.layer.ring(slot, position + row)[channel + c % count] =
        load_at(a.in.qkv, first + row, channel + c % count);
  }
}

// Normed and gated rows of a chunk, columns at, at + 1 by a lane.
[[maybe_unused]] __device__ inline void write_outputs(const ScanShared& sh, const Stage& stage,
                                                      const DeltaArgs& a, const Chunk& chunk, int64_t at,
                                                      float2 norm) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x) / 32; row < kChunk; row += 4) {
    const int own = row - chunk.pad;
    const bool valid = own >= 0 && own < chunk.rows;
    const int t = chunk.first + (valid ? own : 0);
    const float inverse = sh.inverse[row];
    const float2 o = *reinterpret_cast<const float2*>(&sh.o[row * kOutStride + 2 * lane]);
    float2 z;
    if (a.in.z.type == DType::f32) {
      z = {load_at(a.in.z, t, at), load_at(a.in.z, t, at + 1)};
    } else {
      z = unpack(*reinterpret_cast<const uint32_t*>(&stage.z[row * kTileStride + 2 * lane]), __half());
    }
    const float y0 = o.x * inverse * norm.x * quick_silu(z.x), y1 = o.y * inverse * norm.y * quick_silu(z.y);
    if (a.o.type == DType::f32) {
      if (valid) *reinterpret_cast<float2*>(static_cast<float*>(a.o.data) + t * a.o.stride + at) = {y0, y1};
    } else if (valid) {
      Act out[2] = {to_act(y0), to_act(y1)};
      *reinterpret_cast<uint32_t*>(static_cast<Act*>(a.o.data) + t * a.o.stride + at) =
          *reinterpret_cast<const uint32_t*>(out);
    }
  }
}

__global__ __launch_bounds__(128) void scan_kernel(const __grid_constant__ ChunkArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) char memory[];
  ScanShared& sh = *reinterpret_cast<ScanShared*>(memory);
  const auto cluster = cooperative_groups::this_cluster();
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const int rank = blockIdx.x % 2;
  const int h = blockIdx.x / 2;
  const int s = blockIdx.y;
  const int rows = a.batch.certain[s];
  if (rows <= kStepRows) return;
  const int key_head = l.key_head(h);
  const int slot = a.batch.slot[s];
  const int first_row = a.batch.first_row[s];
  const int position = a.batch.position[first_row];
  const int chunks = chunk_count(position, rows);
  const int tile0 = first_tile(first_row);
  const int column0 = rank * kHalfDim;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  load_stage(args, sh.stage[0], h, key_head, column0, tile0, chunk_at(first_row, position, rows, 0));
  commit_copies();
  float state[16][4];
  float* stored =
      l.state(slot, h) + static_cast<int64_t>(column0 + warp * 16 + lane / 4) * kDim + lane % 4 * 2;
  const float entry = position == 0 ? 0.0f : l.decay(slot)[h];
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 v = __ldcs(reinterpret_cast<const float2*>(stored + half * 8 * kDim + n * 8));
      state[n][2 * half] = position == 0 ? 0.0f : entry * v.x;
      state[n][2 * half + 1] = position == 0 ? 0.0f : entry * v.y;
    }
  }
  cluster.sync();  // both blocks run, and both have read the decay

  float* peer_squares = cluster.map_shared_rank(&sh.squares[0][0][0], rank ^ 1);
  const float2 norm = {a.w.norm[column0 + 2 * lane], a.w.norm[column0 + 2 * lane + 1]};
  for (int i = 0; i < chunks; ++i) {
    const Chunk chunk = chunk_at(first_row, position, rows, i);
    if (i + 1 < chunks) {
      load_stage(args, sh.stage[(i + 1) % 2], h, key_head, column0, tile0 + i + 1,
                 chunk_at(first_row, position, rows, i + 1));
    }
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    // Scores come without 1 / sqrt(128): it cancels in the norm up to eps, which is scaled instead.
    scan_chunk(state, sh.stage[i % 2], sh.o, sh.warp_squares[warp], lane, warp * 16, [&] {
      __syncthreads();
      const int row = static_cast<int>(threadIdx.x);
      if (row < kChunk) {
        const float sum = (sh.warp_squares[0][row] + sh.warp_squares[1][row]) +
                          (sh.warp_squares[2][row] + sh.warp_squares[3][row]);
        sh.squares[i % 2][rank][row] = sum;
        peer_squares[(i % 2 * 2 + rank) * kChunk + row] = sum;
      }
      cluster.barrier_arrive();
    });
    cluster.barrier_wait();
    if (threadIdx.x < kChunk) {
      const int row = static_cast<int>(threadIdx.x);
      const float sum = sh.squares[i % 2][0][row] + sh.squares[i % 2][1][row];
      sh.inverse[row] = 1.0f / sqrtf(sum / kDim + a.w.eps * kDim);
    }
    __syncthreads();
    write_outputs(sh, sh.stage[i % 2], a, chunk, static_cast<int64_t>(h) * kDim + column0 + 2 * lane, norm);
    __syncthreads();  // the stage and the outputs are free
  }

  const float decay = args.decay[s * l.value_heads + h];
  const float inverse = 1.0f / decay;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __stcs(reinterpret_cast<float2*>(stored + half * 8 * kDim + n * 8),
             float2{state[n][2 * half] * inverse, state[n][2 * half + 1] * inverse});
    }
  }
  if (rank == 0 && threadIdx.x == 0) l.decay(slot)[h] = decay;
  store_ring(a, slot, first_row, rows, position, l.v_channel(h) + column0, kHalfDim);
  if (!l.owns_key(h, key_head) || rank != 0) return;
  store_ring(a, slot, first_row, rows, position, l.q_channel(key_head), kDim);
  store_ring(a, slot, first_row, rows, position, l.k_channel(key_head), kDim);
#endif
}

}  // namespace
}  // namespace braid::cuda
