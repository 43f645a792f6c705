// activations_avx2.cpp -- quantizing activation rows, and silu(gate) * up, on AVX2. Formulas:
// activations.h, operation for operation.

#if defined(__x86_64__)

#include "ops/cpu/gemm/activations.h"
#include "ops/cpu/gemm/products_avx2.h"

namespace braid::cpu::avx2 {
namespace {

// Compares magnitudes as integers, where NaN is above every number; a float maximum would lose NaN.
BRAID_INLINE float largest(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

// From 8 sums of pairs of codes (two per quad): the sums over even and over odd ones.
BRAID_INLINE __m128i sum_pairs(__m256i pairs) {
  const __m128i v =
      _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  return _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
}

void quantize_sub(const float* x, int sub, const QuantizeJob& job, int64_t at) {
  __m256 v[4];
  for (int i = 0; i < 4; i++)
    v[i] = x != nullptr ? _mm256_loadu_ps(x + 8 * i) : _mm256_setzero_ps();
  const auto magnitude = [&](int i) {
    return _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[i]));
  };
  const float peak = largest(_mm256_max_epi32(_mm256_max_epi32(magnitude(0), magnitude(1)),
                                              _mm256_max_epi32(magnitude(2), magnitude(3))));
  const float range = job.wide_codes ? kWideRange : kCodeRange;
  const bool zero = peak < kSmallestPeak;
  const float d = zero ? 0.0f : peak / range;
  const __m256 inverse = _mm256_set1_ps(zero ? 0.0f : range / peak);
  __m256i c[4];
  for (int i = 0; i < 4; i++) c[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
  // packs works within 128-bit lanes.
  const __m256i w0 = _mm256_permute4x64_epi64(_mm256_packs_epi32(c[0], c[1]), 0xd8);
  const __m256i w1 = _mm256_permute4x64_epi64(_mm256_packs_epi32(c[2], c[3]), 0xd8);
  const __m256i one = _mm256_set1_epi16(1);
  const __m128i p0 = sum_pairs(_mm256_madd_epi16(w0, one)),
                p1 = sum_pairs(_mm256_madd_epi16(w1, one));
  const int32_t s0 = _mm_cvtsi128_si32(p0) + _mm_extract_epi32(p0, 1);
  const int32_t s1 = _mm_cvtsi128_si32(p1) + _mm_extract_epi32(p1, 1);
  ActHead& head = job.head[at];
  head.d[sub] = d;
  head.sum[sub] = s0 + s1;
  head.dsum[sub] = d * static_cast<float>(s0 + s1);
  head.sum16[2 * sub] = static_cast<int16_t>(s0);
  head.sum16[2 * sub + 1] = static_cast<int16_t>(s1);
  const __m128i start =
      _mm_slli_epi32(_mm_sub_epi32(_mm_setzero_si128(), _mm_unpacklo_epi64(p0, p1)), 5);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(head.start6[2 * sub]), _mm_packs_epi32(start, start));
  if (job.needs & kNeedsWide) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    int16_t* q = job.wide[at].q + 32 * sub;
    store256(q, _mm256_shuffle_epi8(w0, order));
    store256(q + 16, _mm256_shuffle_epi8(w1, order));
  }
  if (job.wide_codes) return;
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(w0, w1), 0xd8);
  if (job.needs & kNeedsCodes) store256(job.codes[at].q + 32 * sub, bytes);
  if (job.needs & kNeedsNibbles) {
    // low = ((q + 8) & 15) - 8, high = (q - low) >> 4, in words, as q - low may be 128.
    const __m256i eight = _mm256_set1_epi16(8), fifteen = _mm256_set1_epi16(15);
    const __m256i l0 =
        _mm256_sub_epi16(_mm256_and_si256(_mm256_add_epi16(w0, eight), fifteen), eight);
    const __m256i l1 =
        _mm256_sub_epi16(_mm256_and_si256(_mm256_add_epi16(w1, eight), fifteen), eight);
    const __m256i h0 = _mm256_srai_epi16(_mm256_sub_epi16(w0, l0), 4);
    const __m256i h1 = _mm256_srai_epi16(_mm256_sub_epi16(w1, l1), 4);
    ActNibbles& n = job.nibbles[at];
    store256(n.high + 32 * sub, _mm256_permute4x64_epi64(_mm256_packs_epi16(h0, h1), 0xd8));
    store256(n.low + 32 * sub, _mm256_permute4x64_epi64(_mm256_packs_epi16(l0, l1), 0xd8));
  }
}

BRAID_INLINE __m256 exp8(__m256 x) {
  x = _mm256_min_ps(_mm256_set1_ps(kExpHigh), _mm256_max_ps(_mm256_set1_ps(kExpLow), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2E)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_set1_ps(kExpTerms[0]);
  for (int i = 1; i < 7; i++) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpTerms[i]));
  const __m256i bits =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(bits));
}

}  // namespace

void quantize(const QuantizeJob& job) {
  quantize_row(job, [](const float* x, int sub, const QuantizeJob& to, int64_t at) {
    quantize_sub(x, sub, to, at);
  });
}

void silu_mul(float* y, const float* gate, const float* up, int64_t n) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 g = _mm256_loadu_ps(gate + i);
    const __m256 s = _mm256_div_ps(g, _mm256_add_ps(one, exp8(_mm256_xor_ps(g, sign))));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(s, _mm256_loadu_ps(up + i)));
  }
}

}  // namespace braid::cpu::avx2

#endif
