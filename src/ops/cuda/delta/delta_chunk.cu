// delta_chunk.cu -- long runs of certain rows of the gated delta rule: chunks of 64 tokens on tensor cores.
//
// One value head, chunk of n <= 64 tokens, entry state S0 (true, decay applied), G the summed log decay:
//   A_ij = b_i e^{G_i - G_j} (k_i . k_j)  for j < i      T = (I + A)^-1
//   R    = b (V - e^G K S0)                              D = T R
//   O    = e^G Q S0 + P D                                P_ij = e^{G_i - G_j} (q_i . k_j)  for j <= i
//   S    = e^{G_n} S0 + sum_i e^{G_n - G_i} k_i d_i^T
// Products take f16 operands and add in f32: q, k are unit vectors, T has entries about 1, S and D of order 1
// to 100, and f16 keeps 11 bits of them (bf16 would be 8 times worse). G, A and the inverse are f32. Errors
// against the recurrence: 5e-4 relative. Chunks are cut at absolute multiples of 64, so that a resumed run
// does the same arithmetic as a cold one; rows that a chunk lacks have k = v = b = g = 0, which changes
// nothing.
//
// Three launches, and what they take for 2048 tokens of one sequence of 27B (48 value, 16 key heads), H200:
//   prepare   70 us   convolution, SiLU, l2 norm of all rows -> q, k, v as f16 [head][row][128]
//   intra     72 us   per (chunk, value head): Gram matrices, T, P, gates; and the decay chain of each head
//   scan     217 us   per (sequence, value head): the state through the chunks; gated norm; state and ring
// Floors: prepare 84 MB (21 us); all products 14 GFLOP (18 us at 790 TFLOP/s); scan is a chain of 32
// dependent chunks, about 3 us each in the best public kernel and 7 us here. Together 363 us.
//
// scan: a cluster of two blocks shares a head, 64 value columns each, 4 warps of 16 columns; S^T [16, 128] of
// a warp stays in 64 registers of a lane, as the accumulator of m16n8k16, which is also the layout of an A
// operand: S K^T, S Q^T, R T^T, D P^T and D K follow from each other without leaving registers. K, Q, V, z,
// T, P tiles come through two stages of cp.async. The sums of squares of the norm cross the cluster while S
// is updated.
//
// Tried: norm and gate with z from global memory inside the chain: 18 us a chunk; sums of squares row by row
// instead of in the fragments: 10 us; conversions right behind their loads in prepare: 108 us. Not done:
// wgmma with A in registers for the five products (one warp a scheduler waits for ldmatrix most of the time).
#include <cooperative_groups.h>

#include "ops/cuda/delta/delta_forms.h"
#include "ops/cuda/primitives/mma.h"

namespace braid::cuda {
namespace {

constexpr int kChunk = 64;
constexpr int kDim = 128;
constexpr int kGates = 3;
// Chunk tiles of a sequence start at tile first_row * 3 / 64: it has more than kStepRows rows, so its chunks
// never reach the next sequence's.
constexpr int kTileShare = 3;
static_assert(kStepRows >= 48);

struct ChunkArgs {
  DeltaArgs a;
  __half* q;  // [Hk][T][128]
  __half* k;
  __half* v;        // [Hv][T][128]
  __half* inverse;  // [tiles][Hv][64][64]
  __half* scores;
  float* gates;  // [tiles][Hv][3][64]: e^G, e^{G_n - G}, beta
  float* decay;  // [S][Hv]
  int max_tokens;
};

__device__ int first_tile(int first_row) {
  return static_cast<int>(int64_t{first_row} * kTileShare / kChunk);
}
__device__ int chunk_count(int position, int rows) {
  return (position + rows - 1) / kChunk - position / kChunk + 1;
}

// Rows of one chunk of a sequence.
struct Chunk {
  int first;  // batch row
  int rows;
  int pad;  // rows that the chunk lacks in front
};
__device__ Chunk chunk_at(int first_row, int position, int rows, int index) {
  const int start = (position / kChunk + index) * kChunk;  // absolute
  const int begin = max(start, position);
  const int end = min(start + kChunk, position + rows);
  return {first_row + begin - position, end - begin, begin - start};
}

// ---- prepare ----
// A block is 64 rows of one head of q, k or v: 4 groups of 64 threads, 16 rows each, 2 channels a thread.

struct PreparedRow {
  bool wanted;
  int slot, position;
  int index;  // in its sequence
};

__global__ __launch_bounds__(256) void prepare_kernel(const __grid_constant__ ChunkArgs args) {
  constexpr int kRows = 16;
  __shared__ float partial[4][2][kRows];
  __shared__ PreparedRow info[64];
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const int head = blockIdx.y;  // q heads, k heads, v heads
  const bool value = head >= 2 * l.key_heads;
  const int group = threadIdx.x / 64;
  const int channel = head * kDim + threadIdx.x % 64 * 2;
  const int row0 = blockIdx.x * 64 + group * kRows;
  float4 tap[2];  // as stored: oldest first
  for (int c = 0; c < 2; ++c)
    tap[c] = *reinterpret_cast<const float4*>(a.w.conv + static_cast<int64_t>(channel + c) * 4);

  // Two channels as they lie in memory: nothing waits for them before all are asked for.
  const bool wide = a.in.qkv.type == DType::f32;
  const auto input = [&](int t) -> uint2 {
    const int64_t at = t * a.in.qkv.stride + channel;
    if (wide) return *reinterpret_cast<const uint2*>(static_cast<const float*>(a.in.qkv.data) + at);
    return {*reinterpret_cast<const uint32_t*>(static_cast<const __half*>(a.in.qkv.data) + at), 0};
  };
  if (threadIdx.x < 64) {
    const int t = blockIdx.x * 64 + static_cast<int>(threadIdx.x);
    const int s = t < a.batch.tokens ? a.batch.sequence[t] : -1;
    PreparedRow row = {};
    if (s >= 0) {
      row.slot = a.batch.slot[s];
      row.position = a.batch.position[t];
      row.index = t - a.batch.first_row[s];
      const int certain = a.batch.certain[s];
      row.wanted = certain > kStepRows && row.index < certain;
    }
    info[threadIdx.x] = row;
  }
  uint2 raw[kRows + 3];  // raw[i + 3] belongs to row0 + i
#pragma unroll
  for (int i = 0; i < kRows + 3; ++i) {
    const int t = row0 + i - 3;
    raw[i] = t >= 0 && t < a.batch.tokens ? input(t) : uint2{0, 0};
  }
  __syncthreads();
  float2 x[kRows + 3];
#pragma unroll
  for (int i = 0; i < kRows + 3; ++i) {
    x[i] = wide ? float2{__uint_as_float(raw[i].x), __uint_as_float(raw[i].y)} : unpack(raw[i].x, __half());
  }
  float2 y[kRows];
  float squares[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    squares[i] = 0;
    const PreparedRow row = info[group * kRows + i];
    if (!row.wanted) continue;
    float2 sum = {tap[0].w * x[i + 3].x, tap[1].w * x[i + 3].y};
#pragma unroll
    for (int j = 1; j < 4; ++j) {
      float2 past = x[i + 3 - j];
      if (j > row.index) {  // before the sequence's first row: what the slot remembers
        past = {0, 0};
        if (row.position - j >= 0) {
          const float* ring = l.ring(row.slot, row.position - j) + channel;
          past = {ring[0], ring[1]};
        }
      }
      const float w0 = j == 1 ? tap[0].z : j == 2 ? tap[0].y : tap[0].x;
      const float w1 = j == 1 ? tap[1].z : j == 2 ? tap[1].y : tap[1].x;
      sum = {fmaf(w0, past.x, sum.x), fmaf(w1, past.y, sum.y)};
    }
    y[i] = {silu(sum.x), silu(sum.y)};
    squares[i] = y[i].x * y[i].x + y[i].y * y[i].y;
  }
  if (!value) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) squares[i] = warp_sum(squares[i]);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) partial[group][threadIdx.x / 32 % 2][i] = squares[i];
    }
  }
  __syncthreads();
  __half* out = head < l.key_heads ? args.q + static_cast<int64_t>(head) * args.max_tokens * kDim
                : !value ? args.k + static_cast<int64_t>(head - l.key_heads) * args.max_tokens * kDim
                         : args.v + static_cast<int64_t>(head - 2 * l.key_heads) * args.max_tokens * kDim;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (!info[group * kRows + i].wanted) continue;
    const float inverse = value ? 1.0f : 1.0f / sqrtf(partial[group][0][i] + partial[group][1][i] + 1e-6f);
    *reinterpret_cast<__half2*>(out + static_cast<int64_t>(row0 + i) * kDim + threadIdx.x % 64 * 2) =
        __floats2half2_rn(y[i].x * inverse, y[i].y * inverse);
  }
}

// ---- intra ----

constexpr int kWideStride = kDim + 8;      // halves of a row of 128 in shared memory
constexpr int kTileStride = kChunk + 8;    // of a row of 64
constexpr int kSquareStride = kChunk + 4;  // floats

struct IntraShared {
  union {
    struct {  // until the Gram matrices are in registers
      __half k[kChunk * kWideStride];
      __half q[kChunk * kWideStride];
    };
    struct {
      float a[kChunk * kSquareStride];
      float t[kChunk * kSquareStride];
    };
  };
  float e[4][32];  // of each warp, for chain_decay
  float g[kChunk];
  float beta[kChunk];
};

// Rows of one head of a chunk into shared memory, zeros where the chunk has none.
template <int kColumns, int kThreads>
__device__ void copy_rows(__half* to, int stride, const __half* from, const Chunk& chunk,
                          int64_t from_stride = kDim) {
  constexpr int kPieces = kColumns / 8;
  for (int i = threadIdx.x; i < kChunk * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int own = row - chunk.pad;
    const bool valid = own >= 0 && own < chunk.rows;
    copy_async_or_zero(shared_address(to + row * stride + i % kPieces * 8),
                       from + (valid ? chunk.first + own : 0) * from_stride + i % kPieces * 8, valid);
  }
}

// T = (I + A)^-1, A strictly lower: 16 x 16 diagonal blocks by substitution, the others from them.
__device__ void invert(IntraShared& sh) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  {
    const int base = warp * 16;
    const int column = lane % 16;
    float t[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int j = 0; j < i; ++j) sum = fmaf(-sh.a[(base + i) * kSquareStride + base + j], t[j], sum);
      t[i] = sum;
    }
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) sh.t[(base + i) * kSquareStride + base + column] = t[i];
    }
  }
  // Block (i, j), i - j = d: T_ij = -T_ii sum_l A_il T_lj. Its 256 elements by 128 threads; the sum goes
  // through the block of `t` that it will fill.
  const int row = threadIdx.x / 8;       // 0..15
  const int pair = threadIdx.x % 8 * 2;  // 2 columns
  for (int d = 1; d < 4; ++d) {
    __syncthreads();
    for (int j = 0; j + d < 4; ++j) {
      const int i = j + d;
      float2 sum = {0, 0};
      for (int block = j; block < i; ++block) {
#pragma unroll
        for (int m = 16 * block; m < 16 * block + 16; ++m) {
          const float x = sh.a[(i * 16 + row) * kSquareStride + m];
          const float2 y = *reinterpret_cast<const float2*>(&sh.t[m * kSquareStride + j * 16 + pair]);
          sum = {fmaf(x, y.x, sum.x), fmaf(x, y.y, sum.y)};
        }
      }
      // Above the diagonal nobody looks: a place for the sum, transposed to block (j, i).
      *reinterpret_cast<float2*>(&sh.t[(j * 16 + row) * kSquareStride + i * 16 + pair]) = sum;
    }
    __syncthreads();
    for (int j = 0; j + d < 4; ++j) {
      const int i = j + d;
      float2 sum = {0, 0};
#pragma unroll
      for (int m = 0; m < 16; ++m) {
        const float x = sh.t[(i * 16 + row) * kSquareStride + i * 16 + m];
        const float2 y =
            *reinterpret_cast<const float2*>(&sh.t[(j * 16 + m) * kSquareStride + i * 16 + pair]);
        sum = {fmaf(-x, y.x, sum.x), fmaf(-x, y.y, sum.y)};
      }
      *reinterpret_cast<float2*>(&sh.t[(i * 16 + row) * kSquareStride + j * 16 + pair]) = sum;
    }
  }
  __syncthreads();
}

// The decay beside the state after the last row of a sequence: token by token, as the step form does it.
__device__ void chain_decay(const ChunkArgs& args, int h, int s, float* e_of_warp) {
  const DeltaArgs& a = args.a;
  const int lane = threadIdx.x % 32;
  const int rows = a.batch.certain[s];
  if (rows <= kStepRows) return;
  const int first = a.batch.first_row[s];
  float decay = a.batch.position[first] == 0 ? 1.0f : a.layer.decay(a.batch.slot[s])[h];
  const auto alpha = [&](int row) { return row < rows ? load_at(a.in.alpha, first + row, h) : 0.0f; };
  float next = alpha(lane);
  for (int begin = 0; begin < rows; begin += 32) {
    __syncwarp();
    e_of_warp[lane] = expf(log_decay(next, a.w.dt[h], a.w.a[h]));
    next = alpha(begin + 32 + lane);
    __syncwarp();
    const auto step = [&](int i) {
      float before;
      bool fold;
      decay = next_decay(decay, e_of_warp[i], &before, &fold);
    };
    if (begin + 32 <= rows) {
#pragma unroll
      for (int i = 0; i < 32; ++i) step(i);
    } else {
      for (int i = 0; i < rows - begin; ++i) step(i);
    }
  }
  if (lane == 0) args.decay[s * a.layer.value_heads + h] = decay;
}

// G, the sums of log decays up to each row of the chunk, and beta. A barrier is needed after it.
__device__ inline void load_gates(IntraShared& sh, const DeltaArgs& a, const Chunk& chunk, int h) {
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < kChunk) {
    const int own = static_cast<int>(threadIdx.x) - chunk.pad;
    const bool valid = own >= 0 && own < chunk.rows;
    const int row = chunk.first + (valid ? own : 0);
    sh.g[threadIdx.x] = valid ? log_decay(load_at(a.in.alpha, row, h), a.w.dt[h], a.w.a[h]) : 0.0f;
    sh.beta[threadIdx.x] = valid ? exact_sigmoid(load_at(a.in.beta, row, h)) : 0.0f;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    float low = sh.g[2 * lane];
    float both = low + sh.g[2 * lane + 1];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_up_sync(kFullWarp, both, offset);
      if (lane >= offset) both += other;
    }
    const float before = both - (low + sh.g[2 * lane + 1]);
    low = before + low;
    __syncwarp();
    sh.g[2 * lane] = low;
    sh.g[2 * lane + 1] = both;
  }
}

// From the Gram matrices of K and of Q with K: A to shared memory, the scores to memory.
__device__ inline void apply_gates(IntraShared& sh, const float (&kk)[8][4], const float (&qk)[8][4],
                                   __half* scores) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = warp * 16 + lane / 4 + 8 * half;
      const int j = n * 8 + lane % 4 * 2;
      float p[2] = {0, 0};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float entry = 0;
        if (j + c <= i) {
          const float since = expf(sh.g[i] - sh.g[j + c]);
          p[c] = since * qk[n][2 * half + c];
          if (j + c < i) entry = sh.beta[i] * since * kk[n][2 * half + c];
        }
        sh.a[i * kSquareStride + j + c] = entry;
      }
      *reinterpret_cast<__half2*>(scores + i * kChunk + j) = __floats2half2_rn(p[0], p[1]);
    }
  }
}

__global__ __launch_bounds__(128) void intra_kernel(const __grid_constant__ ChunkArgs args, int tiles) {
  extern __shared__ __align__(16) char memory[];
  IntraShared& sh = *reinterpret_cast<IntraShared*>(memory);
  const DeltaArgs& a = args.a;
  const DeltaView& l = a.layer;
  const int h = blockIdx.y;
  const int key_head = h % l.key_heads;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (blockIdx.x == 0) {  // the first blocks to start: their chains are long
    for (int s = warp; s < a.batch.sequences; s += 4) chain_decay(args, h, s, sh.e[warp]);
    return;
  }
  const int tile = blockIdx.x - 1;
  const int t = min(a.batch.tokens, ((tile + 1) * kChunk + kTileShare - 1) / kTileShare) - 1;
  const int s = a.batch.sequence[t];
  if (s < 0) return;
  const int rows = a.batch.certain[s];
  const int first_row = a.batch.first_row[s];
  if (rows <= kStepRows) return;
  const int position = a.batch.position[first_row];
  const int index = tile - first_tile(first_row);
  if (index < 0 || index >= chunk_count(position, rows)) return;
  const Chunk chunk = chunk_at(first_row, position, rows, index);

  const int64_t head_rows = static_cast<int64_t>(key_head) * args.max_tokens * kDim;
  copy_rows<kDim, 128>(sh.k, kWideStride, args.k + head_rows, chunk);
  copy_rows<kDim, 128>(sh.q, kWideStride, args.q + head_rows, chunk);
  commit_copies();
  load_gates(sh, a, chunk, h);
  wait_copies<0>();
  __syncthreads();

  // Gram matrices: warp w has rows 16 w .. 16 w + 15 and the columns up to its last row.
  float kk[8][4] = {};
  float qk[8][4] = {};
  const uint32_t k_base = shared_address(sh.k);
  const uint32_t q_base = shared_address(sh.q);
  const int a_row = warp * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t ka[4], qa[4];
    const uint32_t offset = (a_row * kWideStride + step * 16 + lane / 16 * 8) * 2;
    load_matrices(ka, k_base + offset);
    load_matrices(qa, q_base + offset);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > warp) break;
      uint32_t b[4];
      const int row = n * 16 + lane / 16 * 8 + lane % 8;
      load_matrices(b, k_base + (row * kWideStride + step * 16 + lane / 8 % 2 * 8) * 2);
      mma(kk[2 * n], ka, b[0], b[1], __half());
      mma(kk[2 * n + 1], ka, b[2], b[3], __half());
      mma(qk[2 * n], qa, b[0], b[1], __half());
      mma(qk[2 * n + 1], qa, b[2], b[3], __half());
    }
  }
  __syncthreads();  // the space of K and Q is free
  const int64_t matrix = (static_cast<int64_t>(tile) * l.value_heads + h) * kChunk * kChunk;
  apply_gates(sh, kk, qk, args.scores + matrix);
  __syncthreads();
  invert(sh);
  for (int i = threadIdx.x; i < kChunk * kChunk / 2; i += 128) {
    const int row = i / (kChunk / 2);
    const int column = i % (kChunk / 2) * 2;
    const float* from = sh.t + row * kSquareStride + column;
    *reinterpret_cast<__half2*>(args.inverse + matrix + row * kChunk + column) =
        __floats2half2_rn(column <= row ? from[0] : 0.0f, column + 1 <= row ? from[1] : 0.0f);
  }
  float* gates = args.gates + (static_cast<int64_t>(tile) * l.value_heads + h) * kGates * kChunk;
  if (threadIdx.x < kChunk) {
    gates[threadIdx.x] = expf(sh.g[threadIdx.x]);
    gates[kChunk + threadIdx.x] = expf(sh.g[kChunk - 1] - sh.g[threadIdx.x]);
    gates[2 * kChunk + threadIdx.x] = sh.beta[threadIdx.x];
  }
}

// ---- scan ----

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

// One chunk through the state of a warp's 16 columns. Outputs go to `o` [row][column], not yet normalised.
// `ready` is called between the outputs and the update of the state.
template <typename Ready>
__device__ void scan_chunk(float (&state)[16][4], const Stage& st, float* o, float* warp_squares, int lane,
                           int column, Ready ready) {
  const uint32_t k_base = shared_address(st.k);
  const uint32_t q_base = shared_address(st.q);
  float ks[8][4] = {};
  float qs[8][4] = {};
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
  // R^T = b (V^T - e^G KS), as A operand of the next product; QS takes e^G on the way.
  const uint32_t v_base = shared_address(st.v);
  uint32_t r[4][4];
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
  ready();
  // S^T = e^{G_n} S^T + (e^{G_n - G} D)^T K
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
  const int key_head = h % l.key_heads;
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
  if (h >= l.key_heads || rank != 0) return;
  store_ring(a, slot, first_row, rows, position, l.q_channel(key_head), kDim);
  store_ring(a, slot, first_row, rows, position, l.k_channel(key_head), kDim);
#endif
}

}  // namespace

void delta_chunks(Context& context, const SequenceWorkspace& work, const DeltaArgs& args, int parts) {
  const DeltaView& l = args.layer;
  const Batch& batch = args.batch;
  BRAID_CHECK(batch.tokens <= work.max_tokens && batch.sequences <= work.max_sequences);
  const ChunkArgs chunk{args,
                        static_cast<__half*>(work.chunk_q),
                        static_cast<__half*>(work.chunk_k),
                        static_cast<__half*>(work.chunk_v),
                        static_cast<__half*>(work.chunk_inverse),
                        static_cast<__half*>(work.chunk_scores),
                        work.chunk_gates,
                        work.chunk_decay,
                        work.max_tokens};
  const auto heads = static_cast<unsigned>(l.value_heads);
  const dim3 rows_grid(static_cast<unsigned>(div_up(batch.tokens, 64)),
                       static_cast<unsigned>(2 * l.key_heads) + heads);
  if (parts & 1) prepare_kernel<<<rows_grid, 256, 0, context.stream>>>(chunk);
  context.launched("delta_prepare");

  const int tiles = static_cast<int>(delta_chunk_tiles(batch.tokens));
  context.note(
      cudaFuncSetAttribute(intra_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(IntraShared)),
      "delta_intra");
  if (parts & 2)
    intra_kernel<<<dim3(static_cast<unsigned>(tiles) + 1, heads), 128, sizeof(IntraShared), context.stream>>>(
        chunk, tiles);
  context.launched("delta_intra");

  context.note(
      cudaFuncSetAttribute(scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(ScanShared)),
      "delta_scan");
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(heads * 2, static_cast<unsigned>(batch.sequences));
  config.blockDim = dim3(128);
  config.dynamicSmemBytes = sizeof(ScanShared);
  config.stream = context.stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  if (parts & 4) context.note(cudaLaunchKernelEx(&config, scan_kernel, chunk), "delta_scan");
}

int64_t delta_chunk_tiles(int64_t tokens) { return tokens * kTileShare / kChunk + 4; }

}  // namespace braid::cuda
