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
// Measured, and what was tried: docs/history/cuda-kernels.md.
#include "ops/cuda/delta/delta_chunk_intra.cuh"
#include "ops/cuda/delta/delta_chunk_scan.cuh"
#include "ops/cuda/delta/delta_forms.h"

namespace braid::cuda {
namespace {

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
