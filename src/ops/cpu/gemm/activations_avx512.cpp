// activations_avx512.cpp -- quantizing activation rows, and silu(gate) * up, on AVX-512. Formulas:
// activations.h, operation for operation; the buffer's parts: kernels_avx512.h.

#if defined(__x86_64__)

#include "ops/cpu/gemm/activations.h"
#include "ops/cpu/gemm/products_avx512.h"

namespace braid::cpu::avx512 {
namespace {

BRAID_INLINE void quantize_sub(const float* x, int sub, const QuantizeJob& job, int64_t at) {
  const __m512 v0 = x != nullptr ? _mm512_loadu_ps(x) : _mm512_setzero_ps();
  const __m512 v1 = x != nullptr ? _mm512_loadu_ps(x + 16) : _mm512_setzero_ps();
  // Magnitudes as integers, as on AVX2: NaN is above every number.
  const auto magnitude = [](__m512 v) { return _mm512_castps_si512(_mm512_abs_ps(v)); };
  const int32_t peak_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(magnitude(v0), magnitude(v1)));
  const float peak = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(peak_bits)));
  const float range = job.wide_codes ? kWideRange : kCodeRange;
  const bool zero = peak < kSmallestPeak;
  const float d = zero ? 0.0f : peak / range;
  const __m512 inverse = _mm512_set1_ps(zero ? 0.0f : range / peak);
  const __mmask16 numbers =
      peak_bits < 0x7f800000 ? 0xffff : 0;  // else zeros: other codes could overflow
  const __m512i c0 = _mm512_maskz_cvtps_epi32(numbers, _mm512_mul_ps(v0, inverse));
  const __m512i c1 = _mm512_maskz_cvtps_epi32(numbers, _mm512_mul_ps(v1, inverse));
  const int32_t s0 = _mm512_reduce_add_epi32(c0), s1 = _mm512_reduce_add_epi32(c1);
  ActHead& head = job.head[at];
  head.d[sub] = d;
  head.sum[sub] = -128 * (s0 + s1);
  head.dsum[sub] = d * static_cast<float>(s0 + s1);
  auto* start6 = reinterpret_cast<int32_t*>(head.start6);
  start6[sub] = -32 * s0;
  start6[kSubBlocks + sub] = -32 * s1;
  const auto store = [](int8_t* to, __m512i first, __m512i second) {
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(first));
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 16), _mm512_cvtepi32_epi8(second));
  };
  if (job.wide_codes) {
    // low = the sign-extended lowest byte, high = (code - low) / 256 <= 127 because of kWideRange.
    if ((job.needs & kNeedsNibbles) == 0) return;
    const __m512i round = _mm512_set1_epi32(128);
    ActNibbles& planes = job.nibbles[at];
    store(planes.low + 32 * sub, c0, c1);
    store(planes.high + 32 * sub, _mm512_srai_epi32(_mm512_add_epi32(c0, round), 8),
          _mm512_srai_epi32(_mm512_add_epi32(c1, round), 8));
  } else if (job.needs & kNeedsCodes) {
    store(job.codes[at].q + 32 * sub, c0, c1);
  }
}

BRAID_INLINE __m512 exp16(__m512 x) {
  x = _mm512_min_ps(_mm512_set1_ps(kExpHigh), _mm512_max_ps(_mm512_set1_ps(kExpLow), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), r);
  __m512 p = _mm512_set1_ps(kExpTerms[0]);
#pragma GCC unroll 6
  for (int i = 1; i < 7; i++) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpTerms[i]));
  const __m512i bits =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_mul_ps(p, _mm512_castsi512_ps(bits));
}

}  // namespace

void quantize(const QuantizeJob& job) {
  quantize_row(job, [](const float* x, int sub, const QuantizeJob& to, int64_t at) {
    quantize_sub(x, sub, to, at);
  });
}

void silu_mul(float* y, const float* gate, const float* up, int64_t n) {
  const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 g = _mm512_loadu_ps(gate + i);
    const __m512 s = _mm512_div_ps(g, _mm512_add_ps(one, exp16(_mm512_xor_ps(g, sign))));
    _mm512_storeu_ps(y + i, _mm512_mul_ps(s, _mm512_loadu_ps(up + i)));
  }
}

}  // namespace braid::cpu::avx512

#endif
