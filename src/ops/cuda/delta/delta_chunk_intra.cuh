// delta_chunk_intra.cuh -- the second kernel of delta_chunk.cu: Gram matrices, T, P and gates of a chunk, and
// the decay chain of each head.
#pragma once

#include "ops/cuda/delta/delta_chunk.cuh"

namespace braid::cuda {
namespace {

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
  const int key_head = l.key_head(h);
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

}  // namespace
}  // namespace braid::cuda
