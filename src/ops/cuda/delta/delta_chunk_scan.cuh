// delta_chunk_scan.cuh -- the second kernel of delta_chunk.cu: a state through the chunks of a
// sequence.
//
// 8 warps of 16 value columns. S^T [16, 128] of a warp is the accumulator of m16n8k16 in 64
// registers a lane, also the layout of an A operand. So D^T = U^T - S^T W^T, O^T and the new S^T
// stay in registers. A tile's place in shared memory is refilled when all warps have read it.
#pragma once

#include "ops/cuda/delta/delta_chunk.cuh"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

// Value columns column + lane / 4 and + 8, keys 8 n + 2 (lane % 4) and the next; folds entries.
__device__ inline void load_states(float (&state)[16][4], const DeltaView& l, const Run& run, int h,
                                   int key_head, int column, int lane) {
  if (run.position == 0) {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[n][i] = 0.0f;
    }
    return;
  }
  const int folded = l.folded(run.slot)[h];
  const float* stored =
      l.state(run.slot, h) + static_cast<int64_t>(column + lane / 4) * kDim + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    const float2 low = __ldcs(reinterpret_cast<const float2*>(stored + n * 8));
    const float2 high = __ldcs(reinterpret_cast<const float2*>(stored + 8 * kDim + n * 8));
    state[n][0] = low.x;
    state[n][1] = low.y;
    state[n][2] = high.x;
    state[n][3] = high.y;
  }
  for (int cell = folded; cell < run.position; ++cell) {
    const float e = expf(l.gate(run.slot, cell)[h]);
    const float* d = l.delta(run.slot, cell, h) + column + lane / 4;
    const float d0 = d[0], d1 = d[8];
    const float* keys = l.key(run.slot, cell, key_head) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const float2 k = *reinterpret_cast<const float2*>(keys + n * 8);
      state[n][0] = fmaf(k.x, d0, __fmul_rn(e, state[n][0]));
      state[n][1] = fmaf(k.y, d0, __fmul_rn(e, state[n][1]));
      state[n][2] = fmaf(k.x, d1, __fmul_rn(e, state[n][2]));
      state[n][3] = fmaf(k.y, d1, __fmul_rn(e, state[n][3]));
    }
  }
}

__device__ inline void store_states(const float (&state)[16][4], const DeltaView& l, const Run& run,
                                    int h, int column, int lane) {
  float* stored =
      l.state(run.slot, h) + static_cast<int64_t>(column + lane / 4) * kDim + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    __stcs(reinterpret_cast<float2*>(stored + n * 8), float2{state[n][0], state[n][1]});
    __stcs(reinterpret_cast<float2*>(stored + 8 * kDim + n * 8), float2{state[n][2], state[n][3]});
  }
}

// After all threads of the block have read the slot.
__device__ inline void store_position(const DeltaView& l, const Run& run, int h) {
  l.folded(run.slot)[h] = run.position + run.rows;
  if (run.position == 0) l.decay(run.slot)[h] = 1.0f;
}

// The first value head of a key head also stores q and k. The kernel before has read the old rows.
__device__ inline void store_inputs(const DeltaArgs& a, const Run& run, int h, int key_head,
                                    int thread, int threads) {
  const DeltaView& l = a.layer;
  const int parts = l.owns_key(h, key_head) ? 3 : 1;
  for (int i = thread; i < parts * l.taps * kDim; i += threads) {
    const int part = i / (l.taps * kDim);
    const int row = run.rows - l.taps + i / kDim % l.taps;
    const int channel = (part == 0   ? l.v_channel(h)
                         : part == 1 ? l.q_channel(key_head)
                                     : l.k_channel(key_head)) +
                        i % kDim;
    l.conv_row(run.slot, run.position + row)[channel] =
        load_at(a.in.qkv, run.first_row + row, channel);
  }
}

__device__ __forceinline__ void pack_states(uint32_t (&a)[4], const float (&state)[16][4],
                                            int step) {
  a[0] = pack_act(state[2 * step][0], state[2 * step][1]);
  a[1] = pack_act(state[2 * step][2], state[2 * step][3]);
  a[2] = pack_act(state[2 * step + 1][0], state[2 * step + 1][1]);
  a[3] = pack_act(state[2 * step + 1][2], state[2 * step + 1][3]);
}

__device__ __forceinline__ void load_u(float (&d)[8][4], uint32_t u, int column, int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t x[4];
    load_a_transposed(x, u, column, step * 16, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 low = unpack(x[2 * half], __half()), high = unpack(x[2 * half + 1], __half());
      float(&to)[4] = d[2 * step + half];
      to[0] = low.x;
      to[1] = low.y;
      to[2] = high.x;
      to[3] = high.y;
    }
  }
}

__device__ __forceinline__ void scale_tokens(float (&c)[8][4], const float* factors, int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 e = *reinterpret_cast<const float2*>(&factors[n * 8 + lane % 4 * 2]);
    c[n][0] *= e.x;
    c[n][1] *= e.y;
    c[n][2] *= e.x;
    c[n][3] *= e.y;
  }
}

struct Eight {
  float2 x[4];
  __device__ __forceinline__ explicit Eight(uint4 bits)
      : x{unpack(bits.x, __half()), unpack(bits.y, __half()), unpack(bits.z, __half()),
          unpack(bits.w, __half())} {}
  __device__ __forceinline__ float squares() const {
    float sum[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[0] = fmaf(x[i].x, x[i].x, sum[0]);
      sum[1] = fmaf(x[i].y, x[i].y, sum[1]);
    }
    return sum[0] + sum[1];
  }
};
__device__ __forceinline__ float sum_of_eight_lanes(float x) {
#pragma unroll
  for (int offset = 1; offset < 8; offset *= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}

// f16 activations only; f32 ones take a slower path.
inline bool scans_halves(const DeltaArgs& a) {
  return a.in.z.type == DType::f16 && a.o.type == DType::f16;
}

// z of row `own`, clamped to the run, from `column` of all heads on.
template <bool kHalves>
__device__ __forceinline__ uint4 load_gates(const DeltaArgs& a, const Run& run, int own,
                                            int column) {
  if (!kHalves) return {};
  const int row = run.first_row + min(max(own, 0), run.rows - 1);
  return *reinterpret_cast<const uint4*>(static_cast<const __half*>(a.in.z.data) +
                                         row * a.in.z.stride + column);
}

// Outputs lack 1 / sqrt(128), which cancels in the norm except for eps; eps is scaled instead.
__device__ __forceinline__ float norm_factor(const DeltaArgs& a, float squares) {
  return rsqrtf(squares / kDim + a.w.eps * kDim);
}

// Stores only rows of the run. `weights` begin at the first of the eight columns.
template <bool kHalves>
__device__ __forceinline__ void finish_eight(const DeltaArgs& a, const Eight& o, uint4 gates,
                                             float factor, const float* weights, const Run& run,
                                             int own, int column) {
  if (own < 0 || own >= run.rows) return;
  const int64_t row = run.first_row + own;
  const Eight z(gates);
  uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 norm = *reinterpret_cast<const float2*>(weights + 2 * i);
    const float2 g = kHalves ? z.x[i]
                             : float2{load_at(a.in.z, row, column + 2 * i),
                                      load_at(a.in.z, row, column + 2 * i + 1)};
    const float2 y = {o.x[i].x * factor * (norm.x * quick_silu(g.x)),
                      o.x[i].y * factor * (norm.y * quick_silu(g.y))};
    packed[i] = pack_act(y.x, y.y);
    if (!kHalves) {
      store_at(a.o, row, column + 2 * i, y.x);
      store_at(a.o, row, column + 2 * i + 1, y.y);
    }
  }
  if (kHalves)
    *reinterpret_cast<uint4*>(static_cast<__half*>(a.o.data) + row * a.o.stride + column) = {
        packed[0], packed[1], packed[2], packed[3]};
}

constexpr int kScanThreads = 256;

struct ScanShared {
  __half w[kWide];
  __half q[kWide];
  __half u[kWide];
  __half k[kWide];
  __half scores[kPanel];
  __half o[kWide];
  float gates[kGates][kChunk];
};

static_assert(sizeof(ScanShared) <= 99 * 1024);

template <typename T>
__device__ __forceinline__ void copy_tile(T* to, const T* from, int count) {
  constexpr int kPiece = 16 / sizeof(T);
  for (int i = threadIdx.x * kPiece; i < count; i += kScanThreads * kPiece)
    copy_async(shared_address(to + i), from + i);
}

__device__ __forceinline__ void fetch_first(const ChunkArgs& args, ScanShared& sh, int64_t key_tile,
                                            int64_t value_tile) {
  copy_tile(sh.w, args.w + value_tile * kWide, kWide);
  copy_tile(sh.q, args.q + key_tile * kWide, kWide);
  copy_tile(sh.u, args.u + value_tile * kWide, kWide);
  commit_copies();
}
__device__ __forceinline__ void fetch_second(const ChunkArgs& args, ScanShared& sh,
                                             int64_t key_tile, int64_t value_tile) {
  copy_tile(sh.k, args.k + key_tile * kWide, kWide);
  copy_tile(sh.scores, args.scores + value_tile * kPanel, kPanel);
  copy_tile(&sh.gates[0][0], args.gates + value_tile * kGates * kChunk, kGates * kChunk);
  commit_copies();
}

// D^T = U^T - S^T W^T (W comes negated) and S^T Q^T.
__device__ __forceinline__ void read_state(float (&d)[8][4], float (&o)[8][4],
                                           const float (&state)[16][4], const ScanShared& sh,
                                           int lane) {
  const uint32_t w = shared_address(sh.w), q = shared_address(sh.q);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint32_t a[4];
    pack_states(a, state, step);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      load_b_transposed(b, w, step * 16, n * 16, lane);
      mma_pair(d[2 * n], d[2 * n + 1], a, b);
      load_b_transposed(b, q, step * 16, n * 16, lane);
      mma_pair(o[2 * n], o[2 * n + 1], a, b);
    }
  }
}

// O^T += D^T P^T, P lower triangular.
__device__ __forceinline__ void add_scores(float (&o)[8][4], const float (&d)[8][4],
                                           const ScanShared& sh, int lane) {
  uint32_t a[4][4];
  pack_operand(a, d);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int n = step; n < 4; ++n) {
      uint32_t b[4];
      load_b_transposed(b, shared_address(sh.scores), step * 16, n * 16, lane);
      mma_pair(o[2 * n], o[2 * n + 1], a[step], b);
    }
  }
}

// S^T = e^{G_n} S^T + (e^{G_n - G} D)^T K
__device__ __forceinline__ void update_state(float (&state)[16][4], float (&d)[8][4],
                                             const ScanShared& sh, int lane) {
  const float whole = sh.gates[0][kChunk - 1];
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state[n][i] *= whole;
  }
  scale_tokens(d, sh.gates[1], lane);
  uint32_t a[4][4];
  pack_operand(a, d);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      uint32_t b[4];
      load_b(b, shared_address(sh.k), step * 16, n * 16, lane);
      mma_pair(state[2 * n], state[2 * n + 1], a[step], b);
    }
  }
}

__device__ __forceinline__ void store_outputs(__half* o, const float (&c)[8][4], int column,
                                              int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t x = transpose_matrix(pack_act(c[n][2 * half], c[n][2 * half + 1]));
      *reinterpret_cast<uint32_t*>(
          &o[column / 64 * kPanel + pair_at(n * 8, column / 8 % 8 + half, lane)]) = x;
    }
  }
}

template <bool kHalves>
__global__ __launch_bounds__(kScanThreads,
                             1) void scan_kernel(const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(128) char memory[];
  ScanShared& sh = *reinterpret_cast<ScanShared*>(memory);
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const int h = blockIdx.x;
  const int s = blockIdx.y;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  wait_for_previous();
  let_next_start();
  const int chunks = chunk_count(a.batch, s);
  if (chunks == 0) return;
  const Run run = run_of(a.batch, s);
  const int key_head = l.key_head(h);
  const int tile0 = first_tile(a.batch, s);
  const auto key_tile = [&](int i) {
    return static_cast<int64_t>(tile0 + i) * l.key_heads + key_head;
  };
  const auto value_tile = [&](int i) {
    return static_cast<int64_t>(tile0 + i) * l.value_heads + h;
  };
  fetch_first(args, sh, key_tile(0), value_tile(0));
  fetch_second(args, sh, key_tile(0), value_tile(0));
  float state[16][4];
  load_states(state, l, run, h, key_head, warp * 16, lane);
  const int part = lane % 8;

  for (int i = 0; i < chunks; ++i) {
    wait_copies<1>();
    __syncthreads();
    float d[8][4];
    load_u(d, shared_address(sh.u), warp * 16, lane);
    float o[8][4] = {};
    read_state(d, o, state, sh, lane);
    wait_copies<0>();
    __syncthreads();
    if (i + 1 < chunks) fetch_first(args, sh, key_tile(i + 1), value_tile(i + 1));
    scale_tokens(o, sh.gates[0], lane);
    add_scores(o, d, sh, lane);
    store_outputs(sh.o, o, warp * 16, lane);
    uint4 z[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = run.own(i, half * 32 + thread / 8);
      z[half][0] = load_gates<kHalves>(a, run, own, h * kDim + 8 * part);
      z[half][1] = load_gates<kHalves>(a, run, own, h * kDim + 64 + 8 * part);
    }
    update_state(state, d, sh, lane);
    __syncthreads();
    if (i + 1 < chunks) fetch_second(args, sh, key_tile(i + 1), value_tile(i + 1));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 32 + thread / 8;
      const Eight low(*reinterpret_cast<const uint4*>(sh.o + tile_at(row, 8 * part)));
      const Eight high(*reinterpret_cast<const uint4*>(sh.o + tile_at(row, 64 + 8 * part)));
      const float factor = norm_factor(a, sum_of_eight_lanes(low.squares() + high.squares()));
      finish_eight<kHalves>(a, low, z[half][0], factor, a.w.norm + 8 * part, run, run.own(i, row),
                            h * kDim + 8 * part);
      finish_eight<kHalves>(a, high, z[half][1], factor, a.w.norm + 64 + 8 * part, run,
                            run.own(i, row), h * kDim + 64 + 8 * part);
    }
  }
  store_states(state, l, run, h, warp * 16, lane);
  if (thread == 0) store_position(l, run, h);
  store_inputs(a, run, h, key_head, thread, kScanThreads);
}

}  // namespace
}  // namespace braid::cuda
