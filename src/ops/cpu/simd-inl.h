// simd-inl.h -- vector helpers of the Highway kernels. Included once per target (foreach_target.h).
//
// Sums over a row use 16 lanes on every target: lane l adds the elements l, l + 16, ... in order,
// then lanes fold 8, 4, 2, 1. So a row's sum has the same bytes on AVX2, AVX-512 and NEON.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "ops/state.h"

#if defined(BRAID_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRAID_OPS_CPU_SIMD_INL_H_
#undef BRAID_OPS_CPU_SIMD_INL_H_
#else
#define BRAID_OPS_CPU_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;
constexpr int64_t kLanes = hn::MaxLanes(FloatTag());
constexpr int64_t kSumLanes = 16;
constexpr int64_t kSumVectors = kSumLanes / kLanes;
static_assert(kSumLanes % kLanes == 0);

HWY_INLINE Floats load(const float* p) { return hn::LoadU(FloatTag(), p); }
HWY_INLINE void store(Floats v, float* p) { hn::StoreU(v, FloatTag(), p); }
HWY_INLINE Floats set(float x) { return hn::Set(FloatTag(), x); }

template <class D, class V>
HWY_INLINE float fold_lanes(D d, V v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return fold_lanes(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    v = hn::Add(v, hn::Shuffle1032(v));
    v = hn::Add(v, hn::Shuffle2301(v));
  }
#endif
  return hn::GetLane(v);
}
HWY_INLINE float fold(Floats v) { return fold_lanes(FloatTag(), v); }

HWY_INLINE float fold_sum(Floats (&sum)[kSumVectors]) {
  for (int64_t half = kSumVectors / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; i++) sum[i] = hn::Add(sum[i], sum[i + half]);
  }
  return fold(sum[0]);
}

// sum a[i] b[i] in the order above; elements beyond a multiple of 16 are added last.
HWY_INLINE float dot(const float* a, const float* b, int64_t count) {
  Floats sum[kSumVectors];
  for (int64_t j = 0; j < kSumVectors; j++) sum[j] = hn::Zero(FloatTag());
  int64_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (int64_t j = 0; j < kSumVectors; j++) {
      sum[j] = hn::MulAdd(load(a + i + j * kLanes), load(b + i + j * kLanes), sum[j]);
    }
  }
  float total = fold_sum(sum);
  for (; i < count; i++) total += a[i] * b[i];
  return total;
}

HWY_INLINE void scale(float* x, float factor, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(hn::Mul(load(x + i), set(factor)), x + i);
  for (; i < count; i++) x[i] *= factor;
}

// e^x for -87.3 <= x <= 88, relative error below 3e-7. Favors short chains over few operations.
HWY_INLINE Floats exp_inside(Floats x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  // Adding 1.5 * 2^23 rounds to an integer in the low bits; adding 127 makes them an exponent.
  const Floats magic = set(12582912.0f + 127.0f);
  const Floats shifted = hn::MulAdd(x, set(1.44269504088896341f), magic);
  const Floats n = hn::Sub(shifted, magic);
  const Floats scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  // ln 2 in two parts: n times the first is exact
  Floats r = hn::NegMulAdd(n, set(0.693359375f), x);
  r = hn::NegMulAdd(n, set(-2.12194440e-4f), r);
  const Floats r2 = hn::Mul(r, r);
  const Floats low = hn::MulAdd(r, set(1.0f / 6), set(0.5f));
  Floats high = hn::MulAdd(r, set(1.0f / 120), set(1.0f / 24));
  high = hn::MulAdd(r2, set(1.0f / 720), high);
  const Floats p = hn::MulAdd(r2, hn::MulAdd(r2, high, low), hn::Add(r, set(1.0f)));
  return hn::Mul(p, scale);
}

// e^x for x <= 0; 0 below -87.3 (and for -inf).
HWY_INLINE Floats exp_negative(Floats x) {
  return hn::IfThenElseZero(hn::Ge(x, set(-87.3f)), exp_inside(x));
}

// sum e^(row[i] - most): 16 lanes over shares of 1024, the shares in double. Propagates NaN.
HWY_INLINE double sum_exp(const float* row, int64_t count, float most) {
  constexpr int64_t kShare = 1024;
  double whole = 0;
  for (int64_t begin = 0; begin < count; begin += kShare) {
    const int64_t end = begin + kShare < count ? begin + kShare : count;
    Floats sum[kSumVectors];
    for (int64_t j = 0; j < kSumVectors; j++) sum[j] = hn::Zero(FloatTag());
    int64_t i = begin;
    for (; i + kSumLanes <= end; i += kSumLanes) {
      for (int64_t j = 0; j < kSumVectors; j++) {
        const Floats x = hn::Sub(load(row + i + j * kLanes), set(most));
        sum[j] = hn::Add(sum[j], hn::IfThenZeroElse(hn::Lt(x, set(-87.3f)), exp_inside(x)));
      }
    }
    whole += static_cast<double>(fold_sum(sum));
    for (; i < end; i++) whole += std::exp(static_cast<double>(row[i]) - static_cast<double>(most));
  }
  return whole;
}

// 1 + e^-x for any x; a quotient by it is off by less than 1e-38.
HWY_INLINE Floats sigmoid_divisor(Floats x) {
  return hn::Add(set(1.0f), exp_inside(hn::Min(set(88.0f), hn::Max(hn::Neg(x), set(-87.3f)))));
}
HWY_INLINE Floats sigmoid(Floats x) { return hn::Div(set(1.0f), sigmoid_divisor(x)); }
HWY_INLINE Floats silu(Floats x) { return hn::Div(x, sigmoid_divisor(x)); }

template <KvFormat kFormat>
HWY_INLINE Floats load_kv(const std::byte* row, int64_t i) {
  if constexpr (kFormat == KvFormat::f32) {
    return load(reinterpret_cast<const float*>(row) + i);
  } else if constexpr (kFormat == KvFormat::f16) {
    const hn::Rebind<hwy::float16_t, FloatTag> dh;
    return hn::PromoteTo(FloatTag(),
                         hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(row) + i));
  } else {
    const hn::Rebind<uint16_t, FloatTag> dh;
    const hn::RebindToUnsigned<FloatTag> du;
    const auto bits = hn::LoadU(dh, reinterpret_cast<const uint16_t*>(row) + i);
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  }
}

// Rounds to nearest even.
template <KvFormat kFormat>
HWY_INLINE void store_kv(Floats v, std::byte* row, int64_t i) {
  if constexpr (kFormat == KvFormat::f32) {
    store(v, reinterpret_cast<float*>(row) + i);
  } else if constexpr (kFormat == KvFormat::f16) {
    const hn::Rebind<hwy::float16_t, FloatTag> dh;
    hn::StoreU(hn::DemoteTo(dh, v), dh, reinterpret_cast<hwy::float16_t*>(row) + i);
  } else {
    const hn::Rebind<int16_t, FloatTag> dh;
    const hn::RebindToSigned<FloatTag> di;
    const hn::RebindToUnsigned<FloatTag> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    // rounding could turn a NaN into an infinity
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
    // The arithmetic shift makes values fit int16, so the saturating demotion keeps every bit.
    const auto high = hn::ShiftRight<16>(hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded)));
    hn::StoreU(hn::DemoteTo(dh, high), dh, reinterpret_cast<int16_t*>(row) + i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
