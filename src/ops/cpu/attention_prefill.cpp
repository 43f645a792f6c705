// attention_prefill.cpp -- attention of many rows (attention.h): lanes are rows.
//
// 16 rows (tokens x query heads of one KV head) form a panel. Both products multiply a column of 16
// rows by a broadcast number, in one loop (product):
//   scores [32 positions][16] = sum over dims       K[position][dim] * q[dim][16]
//   acc [head_dim][16]       += sum over positions  V[position][dim] * p[position][16]
// It keeps 6 x 16 results in 12 AVX2 registers: 12 FMAs for 2 loads and 6 broadcasts. Sums run in
// order and invisible positions add exact zeros, so rows do not affect each other's bytes.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_prefill.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <cmath>
#include <cstring>

#include "gguf/half.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = kBlockTokens;
constexpr int64_t kRows = cpu::kPanelRows;
constexpr int64_t kRowVectors = kRows / kLanes;

// out[j][16] = before + sum_k b[j * j_step + k * k_step] a[k][16] for kWide j.
// before = out * factor with kAdd, else 0.
template <int kWide, bool kAdd>
HWY_INLINE void product_strip(float* out, const float* factor, const float* a, const float* b,
                              int64_t j_step, int64_t k_step, int64_t count) {
  Floats acc[kWide][kRowVectors];
  for (int j = 0; j < kWide; j++) {
    for (int64_t r = 0; r < kRowVectors; r++) {
      acc[j][r] = kAdd ? hn::Mul(load(out + j * kRows + r * kLanes), load(factor + r * kLanes))
                       : hn::Zero(FloatTag());
    }
  }
  for (const float* end = a + count * kRows; a != end; a += kRows, b += k_step) {
    Floats x[kRowVectors];
    for (int64_t r = 0; r < kRowVectors; r++) x[r] = load(a + r * kLanes);
    for (int j = 0; j < kWide; j++) {
      const Floats y = set(b[j * j_step]);
      for (int64_t r = 0; r < kRowVectors; r++) acc[j][r] = hn::MulAdd(x[r], y, acc[j][r]);
    }
  }
  for (int j = 0; j < kWide; j++) {
    for (int64_t r = 0; r < kRowVectors; r++) store(acc[j][r], out + j * kRows + r * kLanes);
  }
}

// All `width` j in strips of 6 (12 where a vector holds all 16 rows), then of 4 and 1.
template <bool kAdd>
HWY_INLINE void product(float* out, const float* factor, const float* a, const float* b,
                        int64_t j_step, int64_t k_step, int32_t width, int64_t count) {
  constexpr int kWide = kRowVectors == 1 ? 12 : 6;
  int32_t j = 0;
  for (; width - j >= kWide && width - j != 8; j += kWide) {
    product_strip<kWide, kAdd>(out + j * kRows, factor, a, b + j * j_step, j_step, k_step, count);
  }
  for (; width - j >= 4; j += 4) {
    product_strip<4, kAdd>(out + j * kRows, factor, a, b + j * j_step, j_step, k_step, count);
  }
  for (; j < width; j++) {
    product_strip<1, kAdd>(out + j * kRows, factor, a, b + j * j_step, j_step, k_step, count);
  }
}

// Turns scores [32][16] into weights, updates max and sum, writes the factor of earlier results.
HWY_INLINE void soften(const cpu::Panel& panel, float* scores, float* factor, int32_t begin,
                       const AttentionParams& params) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const bool masked = begin + kBlock - 1 > panel.first_position ||
                      begin < params.lowest_position(panel.last_position);
  for (int64_t r = 0; r < kRowVectors; r++) {
    float* column = scores + r * kLanes;
    if (masked) {
      const auto own = hn::LoadU(di, panel.position + r * kLanes);
      auto lowest = hn::Min(own, hn::Set(di, params.first_cell));
      if (params.window > 0) lowest = hn::Max(lowest, hn::Sub(own, hn::Set(di, params.window - 1)));
      for (int64_t p = 0; p < kBlock; p++) {
        const auto position = hn::Set(di, begin + static_cast<int32_t>(p));
        const auto hidden = hn::Or(hn::Gt(position, own), hn::Gt(lowest, position));
        const Floats s = load(column + p * kRows);
        store(hn::IfThenElse(hn::RebindMask(d, hidden), set(-HUGE_VALF), s), column + p * kRows);
      }
    }
    const Floats before = load(panel.max + r * kLanes);
    Floats top = before;
    for (int64_t p = 0; p < kBlock; p++) top = hn::Max(top, load(column + p * kRows));
    const Floats scaled = exp_negative(hn::Sub(before, top));
    Floats sum = hn::Mul(load(panel.sum + r * kLanes), scaled);
    for (int64_t p = 0; p < kBlock; p++) {
      const Floats e = exp_negative(hn::Sub(load(column + p * kRows), top));
      store(e, column + p * kRows);
      sum = hn::Add(sum, e);
    }
    store(top, panel.max + r * kLanes);
    store(sum, panel.sum + r * kLanes);
    store(scaled, factor + r * kLanes);
  }
}

void panel_scores_here(float* scores, const float* q, const float* k, int64_t head_dim) {
  product<false>(scores, nullptr, q, k, cpu::padded_dim(head_dim), 1, static_cast<int32_t>(kBlock),
                 head_dim);
}

void panel_block_here(const cpu::Panel& panel, const float* k, const float* v, float* scores,
                      int64_t head_dim, int32_t begin, const AttentionParams& params) {
  float factor[kRows];
  panel_scores_here(scores, panel.q, k, head_dim);
  soften(panel, scores, factor, begin, params);
  product<true>(panel.acc, factor, scores, v, 1, cpu::padded_dim(head_dim),
                static_cast<int32_t>(head_dim), kBlock);
}

template <KvFormat kFormat>
void expand_rows(float* out, const std::byte* rows, int64_t head_dim, int32_t count) {
  const int64_t row_bytes = kv_row_bytes(kFormat, head_dim);
  for (int32_t p = 0; p < count; p++, rows += row_bytes, out += cpu::padded_dim(head_dim)) {
    int64_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) store(load_kv<kFormat>(rows, i), out + i);
    for (; i < head_dim; i++) {
      if constexpr (kFormat == KvFormat::f32) {
        out[i] = reinterpret_cast<const float*>(rows)[i];
      } else {
        uint16_t bits;
        std::memcpy(&bits, rows + 2 * i, sizeof bits);
        out[i] = kFormat == KvFormat::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
      }
    }
  }
}

void expand_here(float* out, const std::byte* rows, KvFormat format, int64_t head_dim,
                 int32_t count) {
  switch (format) {
    case KvFormat::f32:
      expand_rows<KvFormat::f32>(out, rows, head_dim, count);
      break;
    case KvFormat::f16:
      expand_rows<KvFormat::f16>(out, rows, head_dim, count);
      break;
    case KvFormat::bf16:
      expand_rows<KvFormat::bf16>(out, rows, head_dim, count);
      break;
  }
  // Unwritten cells may hold NaN, which a weight of zero would not cancel.
  const int64_t padded = cpu::padded_dim(head_dim);
  std::memset(out + count * padded, 0,
              static_cast<size_t>((kBlock - count) * padded) * sizeof(float));
}

using SquareTag = hn::CappedTag<float, 8>;
using Square = hn::Vec<SquareTag>;
constexpr int64_t kSquare = hn::MaxLanes(SquareTag());

HWY_INLINE void transpose(Square (&v)[kSquare]) {
#if HWY_TARGET != HWY_SCALAR
  const SquareTag d;
  const hn::Repartition<double, SquareTag> d2;
  Square fours[kSquare];  // transposed inside each 4 x 4
  for (int64_t i = 0; i < kSquare; i += 4) {
    const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, v[i], v[i + 1]));
    const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, v[i], v[i + 1]));
    const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d, v[i + 2], v[i + 3]));
    const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d, v[i + 2], v[i + 3]));
    fours[i] = hn::BitCast(d, hn::InterleaveLower(d2, low01, low23));
    fours[i + 1] = hn::BitCast(d, hn::InterleaveUpper(d2, low01, low23));
    fours[i + 2] = hn::BitCast(d, hn::InterleaveLower(d2, high01, high23));
    fours[i + 3] = hn::BitCast(d, hn::InterleaveUpper(d2, high01, high23));
  }
  for (int64_t i = 0; i < 4; i++) {
    if constexpr (kSquare == 8) {
      v[i] = hn::ConcatLowerLower(d, fours[i + 4], fours[i]);
      v[i + 4] = hn::ConcatUpperUpper(d, fours[i + 4], fours[i]);
    } else {
      v[i] = fours[i];
    }
  }
#endif
}

void set_rows_here(const cpu::Panel& panel, const float* const* q, float scale, int64_t head_dim) {
  const SquareTag d;
  int64_t i = 0;
  for (; i + kSquare <= head_dim; i += kSquare) {
    for (int64_t row = 0; row < kRows; row += kSquare) {
      Square v[kSquare];
      for (int64_t j = 0; j < kSquare; j++)
        v[j] = hn::Mul(hn::LoadU(d, q[row + j] + i), hn::Set(d, scale));
      transpose(v);
      for (int64_t j = 0; j < kSquare; j++) hn::StoreU(v[j], d, panel.q + (i + j) * kRows + row);
    }
  }
  for (; i < head_dim; i++) {
    for (int64_t row = 0; row < kRows; row++) panel.q[i * kRows + row] = q[row][i] * scale;
  }
}

void get_rows_here(const cpu::Panel& panel, float* const* o, int64_t head_dim) {
  const SquareTag d;
  float inverse[kRows];
  for (int64_t row = 0; row < kRows; row++) inverse[row] = 1.0f / panel.sum[row];
  int64_t i = 0;
  for (; i + kSquare <= head_dim; i += kSquare) {
    for (int64_t row = 0; row < kRows; row += kSquare) {
      Square v[kSquare];
      for (int64_t j = 0; j < kSquare; j++) {
        v[j] =
            hn::Mul(hn::LoadU(d, panel.acc + (i + j) * kRows + row), hn::LoadU(d, inverse + row));
      }
      transpose(v);
      for (int64_t j = 0; j < kSquare; j++) {
        if (o[row + j] != nullptr) hn::StoreU(v[j], d, o[row + j] + i);
      }
    }
  }
  for (; i < head_dim; i++) {
    for (int64_t row = 0; row < kRows; row++) {
      if (o[row] != nullptr) o[row][i] = panel.acc[i * kRows + row] * inverse[row];
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(panel_block_here);
HWY_EXPORT(panel_scores_here);
HWY_EXPORT(expand_here);
HWY_EXPORT(set_rows_here);
HWY_EXPORT(get_rows_here);
}  // namespace

namespace cpu {

void expand_block(float* out, const std::byte* rows, KvFormat format, int64_t head_dim,
                  int32_t count) {
  HWY_DYNAMIC_DISPATCH(expand_here)(out, rows, format, head_dim, count);
}

void panel_block(const Panel& panel, const float* k, const float* v, float* scores,
                 int64_t head_dim, int32_t begin, const AttentionParams& params) {
  HWY_DYNAMIC_DISPATCH(panel_block_here)(panel, k, v, scores, head_dim, begin, params);
}

void panel_scores(float* scores, const float* q, const float* k, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(panel_scores_here)(scores, q, k, head_dim);
}

void panel_clear(const Panel& panel, int64_t head_dim) {
  std::memset(panel.acc, 0, static_cast<size_t>(head_dim * kPanelRows) * sizeof(float));
  for (int64_t r = 0; r < kPanelRows; r++) {
    panel.max[r] = kNoScore;
    panel.sum[r] = 0;
  }
}

void panel_set_rows(const Panel& panel, const float* const* q, float scale, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(set_rows_here)(panel, q, scale, head_dim);
}

void panel_get_rows(const Panel& panel, float* const* o, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(get_rows_here)(panel, o, head_dim);
}

}  // namespace cpu
}  // namespace braid
#endif  // HWY_ONCE
