// rope.cpp -- rotations of a step; queries and keys on their way to attention.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cmath>
#include <cstring>

#include "gguf/half.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

// out = rope(x / rms(x) * norm). rope [dims / 2] pairs of (cos, sin). out may be x.
void norm_rotate(float* out, const float* x, const float* norm, float eps, int64_t head_dim,
                 const float* rope, int64_t dims) {
  const float inverse = 1.0f / std::sqrt(dot(x, x, head_dim) / static_cast<float>(head_dim) + eps);
  int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    store(hn::Mul(hn::Mul(load(x + i), set(inverse)), load(norm + i)), out + i);
  }
  for (; i < head_dim; i++) out[i] = x[i] * inverse * norm[i];
  const int64_t half = dims / 2;
  for (i = 0; i + kLanes <= half; i += kLanes) {
    Floats cosine, sine;
    hn::LoadInterleaved2(FloatTag(), rope + 2 * i, cosine, sine);
    const Floats a = load(out + i), b = load(out + i + half);
    store(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), out + i);
    store(hn::MulAdd(a, sine, hn::Mul(b, cosine)), out + i + half);
  }
  for (; i < half; i++) {
    const float a = out[i], b = out[i + half], cosine = rope[2 * i], sine = rope[2 * i + 1];
    out[i] = std::fma(-b, sine, a * cosine);
    out[i + half] = std::fma(a, sine, b * cosine);
  }
}

void encode_row(KvFormat format, std::byte* row, const float* x, int64_t count) {
  int64_t i = 0;
  if (format == KvFormat::f32) {
    std::memcpy(row, x, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  if (format == KvFormat::f16) {
    for (; i + kLanes <= count; i += kLanes) store_kv<KvFormat::f16>(load(x + i), row, i);
  } else {
    for (; i + kLanes <= count; i += kLanes) store_kv<KvFormat::bf16>(load(x + i), row, i);
  }
  for (; i < count; i++) {
    const uint16_t bits = format == KvFormat::f16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
    std::memcpy(row + i * 2, &bits, sizeof bits);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(norm_rotate);
HWY_EXPORT(encode_row);
}  // namespace

void CpuOps::rope_table(Tensor table, const RopeParams& rope, const Batch& batch) {
  BRAID_CHECK(table.cols == rope.dims && rope.dims % 2 == 0 && table.rows >= batch.tokens);
  const int32_t half = rope.dims / 2;
  BRAID_CHECK(static_cast<size_t>(half) <= work_.frequencies.size());
  if (work_.frequencies_of != rope) {
    for (int32_t i = 0; i < half; i++) work_.frequencies[i] = rope_frequency(rope, i);
    work_.frequencies_of = rope;
  }
  split(batch.tokens, 40.0 * half, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      float* out = table.f32(t);
      for (int32_t i = 0; i < half; i++) {
        const double angle = batch.position[t] * work_.frequencies[i];
        out[2 * i] = static_cast<float>(rope.magnitude * std::cos(angle));
        out[2 * i + 1] = static_cast<float>(rope.magnitude * std::sin(angle));
      }
    }
  });
}

void CpuOps::qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                                const AttentionWeights& w, const AttentionParams& params,
                                const KvLayer& kv, const Batch& batch) {
  const int64_t head_dim = kv.shape.head_dim;
  const int64_t query_stride = params.gate.query_stride(head_dim);
  const int64_t dims = rope_table.cols;
  BRAID_CHECK(q.cols == params.heads * head_dim && qg.cols == params.heads * query_stride);
  BRAID_CHECK(k.cols == kv.shape.kv_heads * head_dim && v.cols == k.cols && dims <= head_dim &&
              dims % 2 == 0);
  BRAID_CHECK(params.heads == 0 || (q.rows >= batch.tokens && qg.rows >= batch.tokens));
  BRAID_CHECK(k.rows >= batch.tokens && v.rows >= batch.tokens);
  constexpr int64_t kMaxHeadDim = 1024;
  BRAID_CHECK(head_dim <= kMaxHeadDim);
  const auto norm = &HWY_DYNAMIC_DISPATCH(norm_rotate);
  const auto encode = &HWY_DYNAMIC_DISPATCH(encode_row);
  const double row_ns = 0.25 * static_cast<double>(q.cols + 3 * k.cols);
  split(batch.tokens, row_ns, [&](int64_t begin, int64_t end) {
    alignas(64) float key[kMaxHeadDim];
    for (int64_t t = begin; t < end; t++) {
      const float* rope = rope_table.f32(t);
      for (int32_t h = 0; h < params.heads; h++) {
        norm(q.f32(t) + h * head_dim, qg.f32(t) + h * query_stride, w.q_norm, w.eps, head_dim, rope,
             dims);
      }
      const int32_t cell = batch.cell[t];
      BRAID_CHECK(cell >= 0 && cell / kBlockTokens < batch.blocks_per_sequence);
      const int32_t block = batch.blocks_of(batch.sequence[t])[cell / kBlockTokens];
      BRAID_CHECK(block >= 0 && block < kv.blocks);
      for (int32_t h = 0; h < kv.shape.kv_heads; h++) {
        norm(key, k.f32(t) + h * head_dim, w.k_norm, w.eps, head_dim, rope, dims);
        encode(kv.shape.k_format, kv.k_row(block, h, cell % kBlockTokens), key, head_dim);
        encode(kv.shape.v_format, kv.v_row(block, h, cell % kBlockTokens), v.f32(t) + h * head_dim,
               head_dim);
      }
    }
  });
  if (kv.cold) seal_filled(kv, batch);
}

}  // namespace braid
#endif  // HWY_ONCE
