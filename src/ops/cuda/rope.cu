// rope.cu -- the table of rotations, and queries and keys on their way to attention.
//
// rope_table: (cos, sin) of position * base^(-2 i / dims), in double: angles reach 2.6e5 rad, where f32 has
// lost the fraction. Once per step.
//
// qk_norm_rope_store, per row: H queries and Hkv keys are divided by their rms, weighted and rotated; keys
// and values go to the row's cell in the cache's formats. A warp owns one head of one row. Bytes per row, 24
// + 2 x 4 heads of 256, f16: 24 KiB of query and gate (the gate is skipped: 12 KiB read, 12 written) + 8 KiB
// of K and V: 30 KiB, 7 ns at 4.3 TB/s; below 300 rows the launch is what it costs.
#include "ops/cuda/device_math.h"
#include "ops/cuda/sequence_ops.h"

namespace braid::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxHeadDim = 256;

__global__ void rope_table_kernel(float* table, int64_t stride, int dims, double base,
                                  const int32_t* position, int tokens) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int pairs = dims / 2;
  if (index >= tokens * pairs) return;
  const int t = index / pairs;
  const int i = index % pairs;
  const double angle = position[t] * pow(base, -2.0 * i / dims);
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  table[t * stride + 2 * i] = static_cast<float>(cosine);
  table[t * stride + 2 * i + 1] = static_cast<float>(sine);
}

struct StoreArgs {
  Tensor q, qg, k, v, rope;
  AttentionWeights w;
  int heads;
  int head_stride;  // of qg: 2 Dh with gates
  KvLayer kv;
  Batch batch;
};

__device__ void store_cell(std::byte* row, KvFormat format, int index, float x) {
  if (format == KvFormat::f32) {
    reinterpret_cast<float*>(row)[index] = x;
  } else if (format == KvFormat::f16) {
    reinterpret_cast<__half*>(row)[index] = __float2half_rn(x);
  } else {
    reinterpret_cast<__nv_bfloat16*>(row)[index] = __float2bfloat16_rn(x);
  }
}

// Where a row's K or V of one head lives; null if the row has no cell.
__device__ std::byte* cell_row(const KvLayer& kv, const Batch& batch, int t, int head, bool key) {
  const int cell = batch.cell[t];
  if (cell < 0) return nullptr;
  const int block =
      batch.block_table[int64_t{batch.sequence[t]} * batch.blocks_per_sequence + cell / kBlockTokens];
  if (block < 0 || block >= kv.blocks) return nullptr;
  const KvFormat format = key ? kv.shape.k_format : kv.shape.v_format;
  const int64_t row_bytes = kv.shape.head_dim * (format == KvFormat::f32 ? 4 : 2);
  const int64_t row = (int64_t{block} * kv.shape.kv_heads + head) * kBlockTokens + cell % kBlockTokens;
  return (key ? kv.k : kv.v) + row * row_bytes;
}

__global__ __launch_bounds__(32 * kWarps) void store_kernel(StoreArgs a) {
  __shared__ float shared[kWarps][kMaxHeadDim];
  const int lane = threadIdx.x % 32;
  const int t = blockIdx.x;
  const int head = blockIdx.y * kWarps + threadIdx.x / 32;
  const int kv_heads = a.kv.shape.kv_heads;
  const int head_dim = a.kv.shape.head_dim;
  if (head >= a.heads + 2 * kv_heads) return;
  if (head >= a.heads + kv_heads) {  // a value: as it is
    const int own = head - a.heads - kv_heads;
    std::byte* cell = cell_row(a.kv, a.batch, t, own, false);
    if (cell == nullptr) return;
    const int64_t from = t * a.v.stride + int64_t{own} * head_dim;
    for (int i = lane; i < head_dim; i += 32)
      store_cell(cell, a.kv.shape.v_format, i, load_as(a.v.data, a.v.type, from + i));
    return;
  }
  const bool query = head < a.heads;
  const Tensor& x = query ? a.qg : a.k;
  const int64_t from =
      t * x.stride + (query ? int64_t{head} * a.head_stride : int64_t{head - a.heads} * head_dim);
  const float* norm = query ? a.w.q_norm : a.w.k_norm;
  float value[kMaxHeadDim / 32];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j) {
    const int i = lane + 32 * j;
    value[j] = i < head_dim ? load_as(x.data, x.type, from + i) : 0.0f;
    sum += value[j] * value[j];
  }
  const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(head_dim) + a.w.eps);
  float* y = shared[threadIdx.x / 32];
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j) {
    const int i = lane + 32 * j;
    if (i >= head_dim) break;
    value[j] *= inverse * norm[i];
    y[i] = value[j];
  }
  __syncwarp();
  const float* rope = static_cast<const float*>(a.rope.data) + t * a.rope.stride;
  const int half = static_cast<int>(a.rope.cols) / 2;
  std::byte* cell = query ? nullptr : cell_row(a.kv, a.batch, t, head - a.heads, true);
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j) {
    const int i = lane + 32 * j;
    if (i >= head_dim) break;
    float out = value[j];
    if (i < 2 * half) {
      const int pair = i < half ? i : i - half;
      const float cosine = rope[2 * pair];
      const float sine = rope[2 * pair + 1];
      out = i < half ? out * cosine - y[i + half] * sine : y[i - half] * sine + out * cosine;
    }
    if (query) {
      store_as(a.q.data, a.q.type, t * a.q.stride + int64_t{head} * head_dim + i, out);
    } else if (cell != nullptr) {
      store_cell(cell, a.kv.shape.k_format, i, out);
    }
  }
}

}  // namespace

void rope_table(Context& context, Tensor table, const RopeParams& rope, const Batch& batch) {
  BRAID_CHECK(table.cols == rope.dims && rope.dims % 2 == 0 && table.rows >= batch.tokens);
  const int count = batch.tokens * rope.dims / 2;
  if (count == 0) return;
  rope_table_kernel<<<div_up(count, 128), 128, 0, context.stream>>>(
      table.f32(), table.stride, rope.dims, rope.freq_base, batch.position, batch.tokens);
  context.launched("rope_table");
}

void qk_norm_rope_store(Context& context, Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                        const AttentionWeights& w, const AttentionParams& params, const KvLayer& kv,
                        const Batch& batch) {
  const int head_dim = kv.shape.head_dim;
  const int head_stride = head_dim * (params.gated ? 2 : 1);
  BRAID_CHECK(q.cols == params.heads * head_dim && qg.cols == params.heads * head_stride);
  BRAID_CHECK(k.cols == kv.shape.kv_heads * head_dim && v.cols == k.cols && rope_table.cols <= head_dim);
  BRAID_CHECK(head_dim <= kMaxHeadDim && rope_table.type == DType::f32);
  if (batch.tokens == 0) return;
  const int tasks = params.heads + 2 * kv.shape.kv_heads;
  const dim3 grid(static_cast<unsigned>(batch.tokens), static_cast<unsigned>(div_up(tasks, kWarps)));
  store_kernel<<<grid, 32 * kWarps, 0, context.stream>>>(
      {q, qg, k, v, rope_table, w, params.heads, head_stride, kv, batch});
  context.launched("qk_norm_rope_store");
}

}  // namespace braid::cuda
