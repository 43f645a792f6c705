// attention_decode.cpp -- attention of few rows (attention.h): lanes are dims.
// K rows are converted on the fly for up to four query heads; three positions share each load of q.
// Lane sums of 32 positions are buffered and folded kLanes at a time. For V, acc of the heads stays
// in registers over the 32 positions, three vectors of dims at a time.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_decode.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/half.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/unit_attention.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = kBlockTokens;

// Lane i of the result is the sum of the lanes of v[i].
HWY_INLINE Floats fold_each(Floats (&v)[kLanes]) {
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  for (int64_t count = kLanes; count > 1; count /= 2) {
    for (int64_t i = 0; i < count / 2; i++) {
      v[i] = hn::Add(hn::ConcatEven(d, v[2 * i + 1], v[2 * i]),
                     hn::ConcatOdd(d, v[2 * i + 1], v[2 * i]));
    }
  }
#endif
  return v[0];
}

// Prefetches into L2: L1 has no room for two blocks of K and V.
HWY_INLINE void fetch(const std::byte* block, int64_t offset, int64_t size_bytes) {
  if (block == nullptr) return;
  for (int64_t i = 0; i < size_bytes; i += 64) __builtin_prefetch(block + offset + i, 0, 2);
}

// Positions (of K) or vectors of dims (of V) per pass: hides FMA latency, fits 16 registers.
constexpr int together(int heads) { return heads == 4 ? 3 : heads == 2 ? 4 : 8; }

// lanes [kHeads][32][kLanes]: unfolded sums of q . k of positions p .. p + kCount - 1.
template <int kHeads, int kCount, KvFormat kFormat>
HWY_INLINE void score_positions(const cpu::DecodeBlock& b, const float* q, int64_t p,
                                float* lanes) {
  const int64_t dim = b.head_dim, row_bytes = kv_row_bytes(kFormat, dim);
  const std::byte* k = b.k.block + p * row_bytes;
  fetch(b.k.next, p * row_bytes, kCount * row_bytes);
  fetch(b.v.next, p * row_bytes, kCount * row_bytes);
  Floats sum[kHeads][kCount];
  for (int h = 0; h < kHeads; h++) {
    for (int j = 0; j < kCount; j++) sum[h][j] = hn::Zero(FloatTag());
  }
  for (int64_t i = 0; i < dim; i += kLanes) {
    Floats x[kCount];
    for (int j = 0; j < kCount; j++) x[j] = load_kv<kFormat>(k + j * row_bytes, i);
    for (int h = 0; h < kHeads; h++) {
      const Floats qi = load(q + h * dim + i);
      for (int j = 0; j < kCount; j++) sum[h][j] = hn::MulAdd(x[j], qi, sum[h][j]);
    }
  }
  for (int h = 0; h < kHeads; h++) {
    for (int j = 0; j < kCount; j++) store(sum[h][j], lanes + (h * kBlock + p + j) * kLanes);
  }
}

template <int kHeads, KvFormat kFormat>
HWY_INLINE void score_block(const cpu::DecodeBlock& b, const float* q, float* scores) {
  constexpr int kCount = together(kHeads);
  float lanes[kHeads * kBlock * kLanes];
  const int64_t begin = b.first / kLanes * kLanes;
  const int64_t end = (b.last + kLanes - 1) / kLanes * kLanes;
  int64_t p = begin;
  for (; end - p >= kCount && (kCount != 3 || end - p != 4); p += kCount)
    score_positions<kHeads, kCount, kFormat>(b, q, p, lanes);
  for (; end - p >= 2; p += 2) score_positions<kHeads, 2, kFormat>(b, q, p, lanes);
  for (; p < end; p++) score_positions<kHeads, 1, kFormat>(b, q, p, lanes);
  for (int h = 0; h < kHeads; h++) {
    for (p = begin; p < end; p += kLanes) {
      Floats v[kLanes];
      for (int64_t i = 0; i < kLanes; i++) v[i] = load(lanes + (h * kBlock + p + i) * kLanes);
      store(fold_each(v), scores + h * kBlock + p);
    }
  }
}

template <int kHeads, int kCount, KvFormat kFormat>
HWY_INLINE void value_dims(const cpu::DecodeBlock& b, float* partials, const float* factors,
                           const float* probabilities, int64_t i) {
  const int64_t row_bytes = kv_row_bytes(kFormat, b.head_dim);
  Floats acc[kHeads][kCount];
  for (int h = 0; h < kHeads; h++) {
    const float* at = partials + h * b.partial_stride + cpu::kPartialHeader + i;
    for (int j = 0; j < kCount; j++) acc[h][j] = hn::Mul(load(at + j * kLanes), set(factors[h]));
  }
  const std::byte* row = b.v.block + b.first * row_bytes;
  for (int32_t p = b.first; p < b.last; p++, row += row_bytes) {
    Floats v[kCount];
    for (int j = 0; j < kCount; j++) v[j] = load_kv<kFormat>(row, i + j * kLanes);
    for (int h = 0; h < kHeads; h++) {
      const Floats weight = set(probabilities[h * kBlock + p]);
      for (int j = 0; j < kCount; j++) acc[h][j] = hn::MulAdd(weight, v[j], acc[h][j]);
    }
  }
  for (int h = 0; h < kHeads; h++) {
    float* at = partials + h * b.partial_stride + cpu::kPartialHeader + i;
    for (int j = 0; j < kCount; j++) store(acc[h][j], at + j * kLanes);
  }
}

template <int kHeads, KvFormat kFormat>
HWY_INLINE void value_block(const cpu::DecodeBlock& b, float* partials, const float* factors,
                            const float* probabilities) {
  constexpr int kCount = together(kHeads);
  const int64_t vectors = b.head_dim / kLanes;
  int64_t i = 0;
  for (; vectors - i >= kCount && (kCount != 3 || vectors - i != 4); i += kCount) {
    value_dims<kHeads, kCount, kFormat>(b, partials, factors, probabilities, i * kLanes);
  }
  for (; vectors - i >= 2; i += 2) {
    value_dims<kHeads, 2, kFormat>(b, partials, factors, probabilities, i * kLanes);
  }
  for (; i < vectors; i++)
    value_dims<kHeads, 1, kFormat>(b, partials, factors, probabilities, i * kLanes);
}

// Turns 32 scores into weights; returns the factor for the earlier results.
HWY_INLINE float soften(float* scores, float scale, int32_t first, int32_t last, float* header) {
  const FloatTag d;
  for (int64_t p = 0; p < first; p++) scores[p] = -HUGE_VALF;
  for (int64_t p = last; p < kBlock; p++) scores[p] = -HUGE_VALF;
  Floats top = set(header[0]);
  for (int64_t p = 0; p < kBlock; p += kLanes) {
    const Floats s = hn::Mul(load(scores + p), set(scale));
    store(s, scores + p);
    top = hn::Max(top, s);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, top));
  const float factor = hn::GetLane(exp_negative(set(header[0] - largest)));
  Floats sum[kSumVectors];
  for (int64_t j = 0; j < kSumVectors; j++) sum[j] = hn::Zero(d);
  for (int64_t p = 0; p < kBlock; p += kSumLanes) {
    for (int64_t j = 0; j < kSumVectors; j++) {
      const Floats e = exp_negative(hn::Sub(load(scores + p + j * kLanes), set(largest)));
      store(e, scores + p + j * kLanes);
      sum[j] = hn::Add(sum[j], e);
    }
  }
  header[0] = largest;
  header[1] = std::fma(header[1], factor, fold_sum(sum));
  return factor;
}

template <int kHeads, KvFormat kKey, KvFormat kValue>
HWY_INLINE void heads_block(const cpu::DecodeBlock& b, int32_t head) {
  float scores[kHeads * kBlock];
  float factors[kHeads];
  float* partials = b.partials + head * b.partial_stride;
  score_block<kHeads, kKey>(b, b.q + int64_t{head} * b.head_dim, scores);
  for (int h = 0; h < kHeads; h++) {
    factors[h] =
        soften(scores + h * kBlock, b.scale, b.first, b.last, partials + h * b.partial_stride);
  }
  value_block<kHeads, kValue>(b, partials, factors, scores);
}

template <KvFormat kKey, KvFormat kValue>
void all_heads_block(const cpu::DecodeBlock& b) {
  int32_t h = 0;
  cpu::DecodeBlock block = b;
  while (h < b.heads) {
    if (b.heads - h >= 4) {
      heads_block<4, kKey, kValue>(block, h);
      h += 4;
    } else if (b.heads - h >= 2) {
      heads_block<2, kKey, kValue>(block, h);
      h += 2;
    } else {
      heads_block<1, kKey, kValue>(block, h++);
    }
    block.k.next = block.v.next = nullptr;  // prefetch once
  }
}

template <KvFormat kKey>
void dispatch_value(const cpu::DecodeBlock& b) {
  switch (b.v.format) {
    case KvFormat::f32:
      return all_heads_block<kKey, KvFormat::f32>(b);
    case KvFormat::f16:
      return all_heads_block<kKey, KvFormat::f16>(b);
    case KvFormat::bf16:
      return all_heads_block<kKey, KvFormat::bf16>(b);
  }
}

float element(const std::byte* row, KvFormat format, int64_t i) {
  if (format == KvFormat::f32) return reinterpret_cast<const float*>(row)[i];
  uint16_t bits;
  std::memcpy(&bits, row + 2 * i, sizeof bits);
  return format == KvFormat::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void any_width_block(const cpu::DecodeBlock& b) {
  float scores[kBlock] = {};
  for (int32_t h = 0; h < b.heads; h++) {
    float* partial = b.partials + h * b.partial_stride;
    for (int32_t p = b.first; p < b.last; p++) {
      const std::byte* row = b.k.block + p * kv_row_bytes(b.k.format, b.head_dim);
      float sum = 0;
      for (int32_t i = 0; i < b.head_dim; i++) {
        sum = std::fma(b.q[int64_t{h} * b.head_dim + i], element(row, b.k.format, i), sum);
      }
      scores[p] = sum;
    }
    const float factor = soften(scores, b.scale, b.first, b.last, partial);
    float* acc = partial + cpu::kPartialHeader;
    for (int32_t i = 0; i < b.head_dim; i++) acc[i] *= factor;
    for (int32_t p = b.first; p < b.last; p++) {
      const std::byte* row = b.v.block + p * kv_row_bytes(b.v.format, b.head_dim);
      for (int32_t i = 0; i < b.head_dim; i++)
        acc[i] = std::fma(scores[p], element(row, b.v.format, i), acc[i]);
    }
  }
}

template <typename Visit>
HWY_INLINE void by_heads(int32_t heads, const Visit& visit) {
  int32_t h = 0;
  for (; heads - h >= 4; h += 4) visit.template operator()<4>(h);
  for (; heads - h >= 2; h += 2) visit.template operator()<2>(h);
  for (; h < heads; ++h) visit.template operator()<1>(h);
}

template <KvFormat kKey>
void score_rows(const cpu::DecodeBlock& b, float* scores) {
  by_heads(b.heads, [&]<int kHeads>(int32_t h) {
    score_block<kHeads, kKey>(b, b.q + int64_t{h} * b.head_dim, scores + h * kBlock);
  });
}
template <KvFormat kValue>
void value_rows(const cpu::DecodeBlock& b, const float* factors, const float* probabilities) {
  by_heads(b.heads, [&]<int kHeads>(int32_t h) {
    value_block<kHeads, kValue>(b, b.partials + h * b.partial_stride, factors + h,
                                probabilities + h * kBlock);
  });
}

// Blocks with at least one side read from codes, which are decoded once for up to kUnitHeads heads.
constexpr int32_t kUnitHeads = 8;

void unit_block(const cpu::DecodeBlock& b) {
  float scores[kUnitHeads * kBlock];
  float factors[kUnitHeads];
  const int64_t dim = b.head_dim;
  const auto bytes = [](const std::byte* unit) { return reinterpret_cast<const uint8_t*>(unit); };
  for (int32_t first = 0; first < b.heads; first += kUnitHeads) {
    cpu::DecodeBlock part = b;
    part.heads = std::min(kUnitHeads, b.heads - first);
    part.q += first * dim;
    part.partials += first * b.partial_stride;
    part.k.next = part.v.next = nullptr;
    if (b.k.codec != nullptr) {
      cpu::score_unit(*b.k.codec, b.head_dim, part.heads, part.q, bytes(b.k.block),
                      first == 0 ? bytes(b.k.next) : nullptr, scores);
    } else if (b.k.format == KvFormat::f32) {
      score_rows<KvFormat::f32>(part, scores);
    } else {
      b.k.format == KvFormat::f16 ? score_rows<KvFormat::f16>(part, scores)
                                  : score_rows<KvFormat::bf16>(part, scores);
    }
    for (int32_t h = 0; h < part.heads; ++h) {
      factors[h] = soften(scores + h * kBlock, b.scale, b.first, b.last,
                          part.partials + h * b.partial_stride);
    }
    if (b.v.codec != nullptr) {
      for (int32_t h = 0; h < part.heads; ++h) {
        if (factors[h] != 1.0f)
          scale(part.partials + h * b.partial_stride + cpu::kPartialHeader, factors[h], dim);
      }
      cpu::add_unit(*b.v.codec, b.head_dim, part.heads, scores, bytes(b.v.block),
                    first == 0 ? bytes(b.v.next) : nullptr, part.partials + cpu::kPartialHeader,
                    b.partial_stride);
    } else if (b.v.format == KvFormat::f32) {
      value_rows<KvFormat::f32>(part, factors, scores);
    } else {
      b.v.format == KvFormat::f16 ? value_rows<KvFormat::f16>(part, factors, scores)
                                  : value_rows<KvFormat::bf16>(part, factors, scores);
    }
  }
}

void decode_block_here(const cpu::DecodeBlock& b) {
  if (b.k.codec != nullptr || b.v.codec != nullptr) return unit_block(b);
  if (b.head_dim % 32 != 0) return any_width_block(b);
  switch (b.k.format) {
    case KvFormat::f32:
      return dispatch_value<KvFormat::f32>(b);
    case KvFormat::f16:
      return dispatch_value<KvFormat::f16>(b);
    case KvFormat::bf16:
      return dispatch_value<KvFormat::bf16>(b);
  }
}

void finish_here(float* o, const float* partials, int64_t count, int64_t stride, int64_t head_dim) {
  float largest = partials[0];
  for (int64_t s = 1; s < count; s++) largest = std::max(largest, partials[s * stride]);
  float sum = 0;
  for (int64_t s = 0; s < count; s++) {
    const float* partial = partials + s * stride;
    const float factor = hn::GetLane(exp_negative(set(partial[0] - largest)));
    const float* acc = partial + cpu::kPartialHeader;
    sum = std::fma(partial[1], factor, sum);
    int64_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) {
      const Floats before = s == 0 ? hn::Zero(FloatTag()) : load(o + i);
      store(hn::MulAdd(load(acc + i), set(factor), before), o + i);
    }
    for (; i < head_dim; i++) o[i] = std::fma(acc[i], factor, s == 0 ? 0.0f : o[i]);
  }
  scale(o, 1.0f / sum, head_dim);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(decode_block_here);
HWY_EXPORT(finish_here);
}  // namespace

namespace cpu {

void decode_block(const DecodeBlock& block) { HWY_DYNAMIC_DISPATCH(decode_block_here)(block); }

void decode_clear(float* partial, int64_t head_dim) {
  std::memset(partial, 0, static_cast<size_t>(partial_floats(head_dim)) * sizeof(float));
  partial[0] = kNoScore;
}

void decode_finish(float* o, const float* partials, int64_t count, int64_t stride,
                   int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(finish_here)(o, partials, count, stride, head_dim);
}

}  // namespace cpu
}  // namespace braid
#endif  // HWY_ONCE
