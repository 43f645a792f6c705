// delta_chunk_intra.cuh -- the first kernel of delta_chunk.cu: the part of a chunk that needs no
// state.
//
// A block is a chunk of one key head with its value heads. It convolves and norms its rows and
// makes the Gram matrices of K and of Q with K. Then each value head gets A, T, and the products of
// T: four warps invert the matrix while the others make scores.
//
// kFew: a block has a multiprocessor, and registers to load the rows at the ends of a run at once.
// With many chunks that is slower.
#pragma once

#include <type_traits>

#include "ops/cuda/barriers.cuh"
#include "ops/cuda/delta/delta_chunk.cuh"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kIntraThreads = 256;
constexpr int kIntraRows = 8;  // that a warp convolves together
constexpr int kDiagonalStride = 20;
// Threads that invert a head's matrix.
#if defined(BRAID_SANITIZE_CUDA)
constexpr int kInvertThreads = kIntraThreads;  // see meet()
#else
constexpr int kInvertThreads = 128;
#endif

struct IntraShared {
  __half k[kWide];
  __half q[kWide];  // later: each warp's staging area, 16 rows x 64
  __half v[kWide];
  __half t[2][kPanel];                      // T^T with rows times -beta e^G, and times beta
  __half a[kPanel];                         // A, with blocks of T on the diagonal
  float diagonal[4][16 * kDiagonalStride];  // blocks of A, by columns
  float g[kMostSharing][kChunk];            // summed log2 of decays
  float beta[kMostSharing][kChunk];
};

static_assert(sizeof(IntraShared) <= 99 * 1024);

// Raw inputs of four channels: rows of a chunk and the three rows before.
template <bool kFloats, bool kFew>
struct RawRows {
  using Four = std::conditional_t<kFloats, uint4, uint2>;
  Four x[kIntraRows + 3];

  // x[3] holds row `own`. Loads nothing if a row is outside the run; kFew: skips those rows only.
  __device__ __forceinline__ void load(const DeltaArgs& a, const Run& run, int own, int channel) {
    using Number = std::conditional_t<kFloats, float, __half>;
    const bool all = inside(run, own);
    if (!kFew && !all) return;
    const int64_t stride = a.in.qkv.stride;
    const Number* from = static_cast<const Number*>(a.in.qkv.data) +
                         (int64_t{run.first_row} + own - 3) * stride + channel;
    if (!all) {
#pragma unroll
      for (int i = 0; i < kIntraRows + 3; ++i, from += stride)
        if (own - 3 + i >= 0 && own - 3 + i < run.rows) x[i] = *reinterpret_cast<const Four*>(from);
      return;
    }
#pragma unroll
    for (int i = 0; i < kIntraRows + 3; ++i, from += stride)
      x[i] = *reinterpret_cast<const Four*>(from);
  }
  static __device__ __forceinline__ bool inside(const Run& run, int own) {
    return own >= 3 && own + kIntraRows <= run.rows;
  }
  __device__ __forceinline__ float4 row(int i) const {
    if constexpr (kFloats) {
      return {__uint_as_float(x[i].x), __uint_as_float(x[i].y), __uint_as_float(x[i].z),
              __uint_as_float(x[i].w)};
    } else {
      const float2 low = unpack(x[i].x, __half()), high = unpack(x[i].y, __half());
      return {low.x, low.y, high.x, high.y};
    }
  }
};

// Also reads the slot's inputs of rows before the run.
__device__ inline float4 input_before(const DeltaArgs& a, const Run& run, int own, int channel) {
  if (run.position + own < 0) return {0, 0, 0, 0};
  if (own < 0)
    return *reinterpret_cast<const float4*>(a.layer.conv_row(run.slot, run.position + own) +
                                            channel);
  const int64_t row = run.first_row + own;
  return {load_at(a.in.qkv, row, channel), load_at(a.in.qkv, row, channel + 1),
          load_at(a.in.qkv, row, channel + 2), load_at(a.in.qkv, row, channel + 3)};
}

struct Taps {  // of four channels, oldest first
  float4 of[4];
  __device__ __forceinline__ Taps(const float* weights, int channel) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      of[c] = *reinterpret_cast<const float4*>(weights + static_cast<int64_t>(channel + c) * 4);
  }
  // x0 is the oldest row.
  __device__ __forceinline__ float4 operator()(float4 x0, float4 x1, float4 x2, float4 x3) const {
    const auto sum = [](const float4& w, float a, float b, float c, float d) {
      return quick_silu(fmaf(w.x, a, fmaf(w.y, b, fmaf(w.z, c, w.w * d))));
    };
    return {sum(of[0], x0.x, x1.x, x2.x, x3.x), sum(of[1], x0.y, x1.y, x2.y, x3.y),
            sum(of[2], x0.z, x1.z, x2.z, x3.z), sum(of[3], x0.w, x1.w, x2.w, x3.w)};
  }
};

// With kNorm a unit vector.
template <bool kNorm>
__device__ __forceinline__ uint2 pack_row(float4 y) {
  float scale = 1.0f;
  if constexpr (kNorm)
    scale = rsqrtf(warp_sum(fmaf(y.x, y.x, fmaf(y.y, y.y, fmaf(y.z, y.z, y.w * y.w)))) + 1e-6f);
  return {pack_act(y.x * scale, y.y * scale), pack_act(y.z * scale, y.w * scale)};
}

// `row`: of the chunk, `own`: of the run. Rows outside the run are zeros.
template <bool kNorm, bool kFloats, bool kFew>
__device__ __forceinline__ void convolve(const DeltaArgs& a, const Run& run,
                                         const RawRows<kFloats, kFew>& raw, int own, int channel,
                                         int row, __half* tile, __half* copy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Taps taps(a.w.conv, channel);
  const auto put = [&](int i, uint2 packed) {
    const int at = (row + i) * 64 + ((lane / 16 * kPanel + lane % 16 * 4) ^ i * 8);
    *reinterpret_cast<uint2*>(tile + at) = packed;
    if (copy != nullptr) *reinterpret_cast<uint2*>(copy + at) = packed;
  };
  if (raw.inside(run, own)) {
#pragma unroll
    for (int i = 0; i < kIntraRows; ++i) {
      put(i, pack_row<kNorm>(taps(raw.row(i), raw.row(i + 1), raw.row(i + 2), raw.row(i + 3))));
      if (i % 2 == 1) asm volatile("" ::: "memory");  // saves registers: a few rows at a time
    }
    return;
  }
  if constexpr (kFew) {
    const auto input = [&](int i) {
      return own - 3 + i >= 0 ? raw.row(i) : input_before(a, run, own - 3 + i, channel);
    };
    float4 x0 = input(0), x1 = input(1), x2 = input(2);
#pragma unroll
    for (int i = 0; i < kIntraRows; ++i) {
      const float4 x3 = input(i + 3);
      uint2 packed = {0, 0};
      if (own + i >= 0 && own + i < run.rows) packed = pack_row<kNorm>(taps(x0, x1, x2, x3));
      put(i, packed);
      x0 = x1, x1 = x2, x2 = x3;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < kIntraRows; ++i) {
      uint2 packed = {0, 0};
      if (own + i >= 0 && own + i < run.rows) {
        packed = pack_row<kNorm>(taps(
            input_before(a, run, own + i - 3, channel), input_before(a, run, own + i - 2, channel),
            input_before(a, run, own + i - 1, channel), input_before(a, run, own + i, channel)));
      }
      put(i, packed);
    }
  }
}

// One warp, two rows a lane.
__device__ inline void make_gates(IntraShared& sh, const DeltaArgs& a, const Run& run, int index,
                                  int h, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float log[2], beta[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int own = run.own(index, 2 * lane + i);
    const bool valid = own >= 0 && own < run.rows;
    const int row = run.first_row + (valid ? own : 0);
    const float alpha = load_at(a.in.alpha, row, h), b = load_at(a.in.beta, row, h);
    log[i] = valid ? log_decay(alpha, a.w.dt[h], a.w.a[h]) * kLog2E : 0.0f;
    beta[i] = valid ? exact_sigmoid(b) : 0.0f;
  }
  const float own = log[0] + log[1];
  float sum = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  float before = __shfl_up_sync(kFullWarp, sum, 1);
  if (lane == 0) before = 0.0f;
  sh.g[at][2 * lane] = before + log[0];
  sh.g[at][2 * lane + 1] = sum;
  sh.beta[at][2 * lane] = beta[0];
  sh.beta[at][2 * lane + 1] = beta[1];
}

// Rows from 16 `block` on of K K^T or Q K^T, up to the diagonal block.
__device__ __forceinline__ void gram(float (&c)[8][4], uint32_t rows, uint32_t k, int block,
                                     int lane) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[4];
    load_a(a, rows, block * 16, step * 16, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > block) break;
      uint32_t b[4];
      load_b_transposed(b, k, step * 16, n * 16, lane);
      mma_pair(c[2 * n], c[2 * n + 1], a, b);
    }
  }
}

// A warp's [16, 64] is contiguous in a tile. `pair(n, half)` packs row lane / 4 + 8 half.
template <typename Pair>
__device__ __forceinline__ void write_unit(__half* stage, __half* to, int lane, Pair pair) {
  __syncwarp();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      *reinterpret_cast<uint32_t*>(stage + pair_at(8 * half, n, lane)) = pair(n, half);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    reinterpret_cast<uint4*>(to)[i * 32 + lane] =
        reinterpret_cast<const uint4*>(stage)[i * 32 + lane];
  }
}

// One warp. The inverse goes to `a` as f16, and transposed to `t`.
__device__ __forceinline__ void invert_diagonal(IntraShared& sh, const float (&kk)[8][4], int at,
                                                int block, int lane) {
  float* diagonal = sh.diagonal[block];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    const float g = sh.g[at][block * 16 + row];
    const float beta = sh.beta[at][block * 16 + row];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n / 2 > block) break;
      const int column = n * 8 + lane % 4 * 2;
      float entry[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        // Above the diagonal the difference may be large, but is not used.
        entry[c] = beta * quick_exp2(fminf(g - sh.g[at][column + c], 0.0f)) * kk[n][2 * half + c];
      }
      if (n / 2 < block) {
        *reinterpret_cast<uint32_t*>(&sh.a[pair_at(block * 16 + 8 * half, n, lane)]) =
            pack_act(entry[0], entry[1]);
      } else {
#pragma unroll
        for (int c = 0; c < 2; ++c)
          diagonal[(column - block * 16 + c) * kDiagonalStride + row] = entry[c];
      }
    }
  }
  __syncwarp();
  // Column lane % 16 of the inverse, by forward substitution.
  const int column = lane % 16;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j < 15; ++j) {
#pragma unroll
    for (int four = (j + 1) / 4; four < 4; ++four) {
      const float4 y = *reinterpret_cast<const float4*>(&diagonal[j * kDiagonalStride + 4 * four]);
      if (4 * four > j) x[4 * four] = fmaf(-y.x, x[j], x[4 * four]);
      if (4 * four + 1 > j) x[4 * four + 1] = fmaf(-y.y, x[j], x[4 * four + 1]);
      if (4 * four + 2 > j) x[4 * four + 2] = fmaf(-y.z, x[j], x[4 * four + 2]);
      x[4 * four + 3] = fmaf(-y.w, x[j], x[4 * four + 3]);
    }
  }
  const int row = block * 16 + column;
  const float beta = sh.beta[at][row];
  const float scale = lane < 16 ? -beta * exp2f(sh.g[at][row]) : beta;
  __half* t = sh.t[lane / 16];
#pragma unroll
  for (int piece = 0; piece < 2; ++piece) {
    const float* y = x + 8 * piece;
    *reinterpret_cast<uint4*>(&t[tile_at(row, block * 16 + 8 * piece)]) = {
        pack_act(scale * y[0], scale * y[1]), pack_act(scale * y[2], scale * y[3]),
        pack_act(scale * y[4], scale * y[5]), pack_act(scale * y[6], scale * y[7])};
  }
  if (lane < 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) sh.a[tile_at(block * 16 + i, row)] = to_act(x[i]);
  }
}

// One warp: blocks below (j, j). T_ij = -T_ii sum_l A_il T_lj, transposed, so results are operands.
template <int j>
__device__ __forceinline__ void invert_column(IntraShared& sh, int at, int lane) {
  const uint32_t a_base = shared_address(sh.a);
  uint32_t t[4][4];  // T_lj^T
  load_a_transposed(t[j], a_base, j * 16, j * 16, lane);
  float scale[2][2];  // [row][of T]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = j * 16 + lane / 4 + 8 * half;
    scale[half][1] = sh.beta[at][row];
    scale[half][0] = -scale[half][1] * exp2f(sh.g[at][row]);
  }
#pragma unroll
  for (int i = j + 1; i < 4; ++i) {
    float sum[2][4] = {};
#pragma unroll
    for (int l = j; l < i; ++l) {
      uint32_t b[4];
      load_b_transposed(b, a_base, l * 16, i * 16, lane);
      mma_pair(sum[0], sum[1], t[l], b);
    }
    const uint32_t x[4] = {pack_act(-sum[0][0], -sum[0][1]), pack_act(-sum[0][2], -sum[0][3]),
                           pack_act(-sum[1][0], -sum[1][1]), pack_act(-sum[1][2], -sum[1][3])};
    uint32_t b[4];
    load_b_transposed(b, a_base, i * 16, i * 16, lane);
    float y[2][4] = {};
    mma_pair(y[0], y[1], x, b);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        t[i][2 * n + half] = pack_act(y[n][2 * half], y[n][2 * half + 1]);
        const int place = pair_at(j * 16 + 8 * half, i * 2 + n, lane);
#pragma unroll
        for (int of = 0; of < 2; ++of) {
          *reinterpret_cast<uint32_t*>(&sh.t[of][place]) =
              pack_act(scale[half][of] * y[n][2 * half], scale[half][of] * y[n][2 * half + 1]);
        }
      }
    }
  }
}

// One warp: P_ij = e^{G_i - G_j} (q_i . k_j), j <= i, of 16 rows.
__device__ __forceinline__ void write_scores(const IntraShared& sh, __half* stage,
                                             const float (&qk)[8][4], __half* to, int at, int block,
                                             int lane) {
  write_unit(stage, to + block * 16 * 64, lane, [&](int n, int half) {
    if (n / 2 > block) return 0u;
    const int row = block * 16 + lane / 4 + 8 * half;
    const int column = n * 8 + lane % 4 * 2;
    const float g = sh.g[at][row];
    const float2 before = *reinterpret_cast<const float2*>(&sh.g[at][column]);
    return pack_act(column <= row ? quick_exp2(g - before.x) * qk[n][2 * half] : 0.0f,
                    column < row ? quick_exp2(g - before.y) * qk[n][2 * half + 1] : 0.0f);
  });
}

// One warp: 16 rows x 64 columns of T (transposed, lower triangular) times a tile's panel.
__device__ __forceinline__ void write_product(__half* stage, const __half* t, const __half* tile,
                                              __half* to, int block, int column, int lane) {
  float c[8][4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step > block) break;
    uint32_t a[4];
    load_a_transposed(a, shared_address(t), block * 16, step * 16, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      load_b(b, shared_address(tile), step * 16, column + n * 16, lane);
      mma_pair(c[2 * n], c[2 * n + 1], a, b);
    }
  }
  write_unit(stage, to, lane,
             [&](int n, int half) { return pack_act(c[n][2 * half], c[n][2 * half + 1]); });
}

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900)
constexpr int kIntraBlocks = 2;
#else
constexpr int kIntraBlocks = 1;
#endif

template <bool kFloats, bool kFew>
__global__ __launch_bounds__(kIntraThreads, kFloats || kFew ? 1 : kIntraBlocks) void intra_kernel(
    const __grid_constant__ ChunkArgs args) {
  extern __shared__ __align__(128) char memory[];
  IntraShared& sh = *reinterpret_cast<IntraShared*>(memory);
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const int key_head = blockIdx.x;
  const int tile = blockIdx.y;
  const int warp = threadIdx.x / 32;
  int lane = threadIdx.x % 32;
  wait_for_previous();
  let_next_start();
  const TileOwner owner = owner_of(a.batch, tile);
  if (owner.s < 0) return;
  const Run run = run_of(a.batch, owner.s);
  const int heads = l.value_heads / l.key_heads;
  {
    const int own = run.own(owner.index, warp * kIntraRows);
    const int q_channel = l.q_channel(key_head) + 4 * lane,
              k_channel = l.k_channel(key_head) + 4 * lane;
    const int64_t key_tile = static_cast<int64_t>(tile) * l.key_heads + key_head;
    RawRows<kFloats, kFew> q, k;
    q.load(a, run, own, q_channel);
    k.load(a, run, own, k_channel);
    const bool writes = !kFew || blockIdx.z == 0;
    convolve<true>(a, run, q, own, q_channel, warp * kIntraRows, sh.q,
                   writes ? args.q + key_tile * kWide : nullptr);
    convolve<true>(a, run, k, own, k_channel, warp * kIntraRows, sh.k,
                   writes ? args.k + key_tile * kWide : nullptr);
  }
  static_assert(kMostSharing <= kIntraThreads / 32);
  if (warp < heads) make_gates(sh, a, run, owner.index, l.value_head(key_head, warp), warp);
  __syncthreads();
  const int block = warp % 4;
  float product[8][4] = {};
  gram(product, shared_address(warp < 4 ? sh.k : sh.q), shared_address(sh.k), block, lane);
  __syncthreads();
  for (int j = kFew ? static_cast<int>(blockIdx.z) : 0; j < heads;
       j += kFew ? static_cast<int>(gridDim.z) : 1) {
    // Saves registers: addresses derived from `lane` would otherwise live across heads.
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    __half* stage = sh.q + warp * 16 * 64;
    const int h = l.value_head(key_head, j);
    const int own = run.own(owner.index, warp * kIntraRows);
    const int channel = l.v_channel(h) + 4 * lane;
    RawRows<kFloats, kFew> v;
    const int64_t value_tile = static_cast<int64_t>(tile) * l.value_heads + h;
    if (warp < 4) {
      invert_diagonal(sh, product, j, block, lane);
      v.load(a, run, own, channel);
      meet<kInvertThreads>();
      if (warp == 0) invert_column<0>(sh, j, lane);
      if (warp == 1) invert_column<1>(sh, j, lane);
      if (warp == 2) invert_column<2>(sh, j, lane);
    } else {
      v.load(a, run, own, channel);
      if constexpr (kInvertThreads == kIntraThreads) meet<kInvertThreads>();
      write_scores(sh, stage, product, args.scores + value_tile * kPanel, j, block, lane);
      if (warp < 6) {
        const int row = (warp - 4) * 32 + lane;
        float* gates = args.gates + value_tile * kGates * kChunk;
        gates[row] = exp2f(sh.g[j][row]);
        gates[kChunk + row] = exp2f(sh.g[j][kChunk - 1] - sh.g[j][row]);
      }
    }
    convolve<false>(a, run, v, own, channel, warp * kIntraRows, sh.v, nullptr);
    __syncthreads();
    // Low blocks of rows are short products, so a warp takes one from each end.
    const int column = warp / 4 * 64;
    const int64_t panel = value_tile * kWide + warp / 4 * kPanel;
    write_product(stage, sh.t[0], sh.k, args.w + panel + block * 16 * 64, block, column, lane);
    write_product(stage, sh.t[1], sh.v, args.u + panel + (3 - block) * 16 * 64, 3 - block, column,
                  lane);
    __syncthreads();
  }
}

}  // namespace
}  // namespace braid::cuda
