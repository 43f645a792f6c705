// rope.cu -- the table of rotations, and norm, rotation and store of queries and keys.
//
// rope_table is in double: angles reach 2.6e5 rad, where f32 has lost the fraction. Frequencies
// (rope.h) are kernel arguments, which a recorded step keeps.
//
// qk_norm_rope_store: a warp owns one head of one row. Keys and values go to the row's cell in the
// cache's formats. attention_decode.cu does the same in a decoding step, with the same bytes.
#include "ops/cuda/attention/head_rows.h"
#include "ops/cuda/attention/sealed_cells.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/launch.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

constexpr int kWarps = 8;

struct TableArgs {
  float* table;
  int64_t stride;
  const int32_t* position;
  int tokens, pairs;
  double magnitude;
  double frequency[kMaxHeadDim / 2];
};

__global__ void rope_table_kernel(const __grid_constant__ TableArgs a) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  wait_for_previous();
  let_next_start();
  if (index >= a.tokens * a.pairs) return;
  const int t = index / a.pairs;
  const int i = index % a.pairs;
  double sine, cosine;
  sincos(a.position[t] * a.frequency[i], &sine, &cosine);
  a.table[t * a.stride + 2 * i] = static_cast<float>(a.magnitude * cosine);
  a.table[t * a.stride + 2 * i + 1] = static_cast<float>(a.magnitude * sine);
}

struct StoreArgs {
  Tensor q, qg, k, v, rope;
  AttentionWeights w;
  int heads;
  int head_stride;  // of qg: 2 Dh with gates
  KvLayer kv;
  Batch batch;
  bool wide;  // f16 rows allow 16-byte access
};

// Null if the row has no cell.
__device__ std::byte* cell_row(const KvLayer& kv, const Batch& batch, int t, int head, bool key) {
  const int cell = batch.cell[t];
  if (cell < 0) return nullptr;
  const int block = batch.block_table[int64_t{batch.sequence[t]} * batch.blocks_per_sequence +
                                      cell / kBlockTokens];
  if (block < 0 || block >= kv.blocks) return nullptr;
  const KvFormat format = key ? kv.shape.k_format : kv.shape.v_format;
  const int64_t row_bytes = kv.shape.head_dim * (format == KvFormat::f32 ? 4 : 2);
  const int64_t row =
      (int64_t{block} * kv.shape.kv_heads + head) * kBlockTokens + cell % kBlockTokens;
  return (key ? kv.k : kv.v) + row * row_bytes;
}

// Wide loads if type and alignment allow.
__device__ void load8(float (&x)[8], const Tensor& t, int64_t at, bool wide) {
  if (wide && t.type != DType::f32) {
    const uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const Act*>(t.data) + at);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = load_as(t.data, t.type, at + i);
}
__device__ void store8(const Tensor& t, int64_t at, const float (&x)[8], bool wide) {
  if (wide && t.type != DType::f32) {
    Act out[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = to_act(x[i]);
    *reinterpret_cast<uint4*>(static_cast<Act*>(t.data) + at) =
        *reinterpret_cast<const uint4*>(out);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) store_as(t.data, t.type, at + i, x[i]);
}
__device__ void store_cell8(std::byte* row, KvFormat format, int index, const float (&x)[8]) {
  if (format == KvFormat::f32) {
    float4* to = reinterpret_cast<float4*>(reinterpret_cast<float*>(row) + index);
    to[0] = {x[0], x[1], x[2], x[3]};
    to[1] = {x[4], x[5], x[6], x[7]};
  } else if (format == KvFormat::f16) {
    __half out[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __float2half_rn(x[i]);
    *reinterpret_cast<uint4*>(reinterpret_cast<__half*>(row) + index) =
        *reinterpret_cast<const uint4*>(out);
  } else {
    __nv_bfloat16 out[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __float2bfloat16_rn(x[i]);
    *reinterpret_cast<uint4*>(reinterpret_cast<__nv_bfloat16*>(row) + index) =
        *reinterpret_cast<const uint4*>(out);
  }
}

__global__ __launch_bounds__(32 * kWarps) void store_kernel(const __grid_constant__ StoreArgs a) {
  __shared__ float shared[kWarps][kMaxHeadDim];
  const int lane = threadIdx.x % 32;
  const int t = blockIdx.x;
  const int head = blockIdx.y * kWarps + threadIdx.x / 32;
  const int kv_heads = a.kv.shape.kv_heads;
  const int head_dim = a.kv.shape.head_dim;
  wait_for_previous();
  let_next_start();
  if (head >= a.heads + 2 * kv_heads) return;
  const int i0 = 8 * lane;
  const bool active = i0 < head_dim;
  const bool query = head < a.heads;
  const bool value = head >= a.heads + kv_heads;
  const int own = query ? head : value ? head - a.heads - kv_heads : head - a.heads;
  const Tensor& from = query ? a.qg : value ? a.v : a.k;
  const int64_t at = t * from.stride + int64_t{own} * (query ? a.head_stride : head_dim) + i0;
  float x[8] = {};
  if (active) load8(x, from, at, a.wide);
  std::byte* cell = query ? nullptr : cell_row(a.kv, a.batch, t, own, !value);
  if (value) {
    if (active && cell != nullptr) store_cell8(cell, a.kv.shape.v_format, i0, x);
    return;
  }
  // Loaded early, to overlap with the sum.
  const float* weight = query ? a.w.q_norm : a.w.k_norm;
  const float* rope = static_cast<const float*>(a.rope.data) + t * a.rope.stride;
  const int half = static_cast<int>(a.rope.cols) / 2;
  HeadWeight norm;
  HeadRotation rotation;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int dim = i0 + i;
    norm.weight[i] = active ? weight[dim] : 0.0f;
    const int pair = dim < half ? dim : dim - half;
    const bool turned = dim < 2 * half;
    rotation.cosine[i] = turned ? rope[2 * pair] : 1.0f;
    rotation.sine[i] = turned ? rope[2 * pair + 1] : 0.0f;
  }
  norm_head(x, norm, a.w.eps, head_dim);
  float* y = shared[threadIdx.x / 32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (active) y[i0 + i] = x[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int dim = i0 + i;
    if (dim >= 2 * half) continue;
    const bool low = dim < half;
    x[i] =
        rotated(x[i], y[low ? dim + half : dim - half], rotation.cosine[i], rotation.sine[i], low);
  }
  if (!active) return;
  if (query) {
    store8(a.q, t * a.q.stride + int64_t{head} * head_dim + i0, x, a.wide);
  } else if (cell != nullptr) {
    store_cell8(cell, a.kv.shape.k_format, i0, x);
  }
}

bool multiple_of_eight(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 8 == 0;
}

}  // namespace

}  // namespace cuda

void CudaOps::rope_table(Tensor table, const RopeParams& rope, const Batch& batch) {
  BRAID_CHECK(table.cols == rope.dims && rope.dims % 2 == 0 && table.rows >= batch.tokens);
  BRAID_CHECK(rope.dims <= kMaxHeadDim);
  TableArgs args{
      table.f32(), table.stride, batch.position, batch.tokens, rope.dims / 2, rope.magnitude, {}};
  const int count = args.tokens * args.pairs;
  if (count == 0) return;
  for (int32_t i = 0; i < args.pairs; ++i) args.frequency[i] = rope_frequency(rope, i);
  launch_early(context_, rope_table_kernel, dim3(static_cast<unsigned>(div_up(count, 128))), 128, 0,
               args);
}

void CudaOps::qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                                 const AttentionWeights& w, const AttentionParams& params,
                                 const KvLayer& kv, const Batch& batch) {
  const int head_dim = kv.shape.head_dim;
  const int head_stride = static_cast<int>(params.gate.query_stride(head_dim));
  BRAID_CHECK(q.cols == params.heads * head_dim && qg.cols == params.heads * head_stride);
  BRAID_CHECK(k.cols == kv.shape.kv_heads * head_dim && v.cols == k.cols &&
              rope_table.cols <= head_dim);
  BRAID_CHECK(head_dim <= kMaxHeadDim && head_dim % 8 == 0 && rope_table.type == DType::f32);
  if (batch.tokens == 0) return;
  const bool wide =
      multiple_of_eight(q) && multiple_of_eight(qg) && multiple_of_eight(k) && multiple_of_eight(v);
  const int tasks = params.heads + 2 * kv.shape.kv_heads;
  const dim3 grid(static_cast<unsigned>(batch.tokens),
                  static_cast<unsigned>(div_up(tasks, kWarps)));
  launch_early(context_, store_kernel, grid, 32 * kWarps, 0,
               StoreArgs{q, qg, k, v, rope_table, w, params.heads, head_stride, kv, batch, wide});
  if (kv.cold) seal_filled(context_, kv, batch);
}

void CudaOps::kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) {
  BRAID_CHECK(kv.cold);
  seal_blocks(context_, kv, blocks);
}

}  // namespace braid
