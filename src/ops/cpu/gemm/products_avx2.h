// products_avx2.h -- shared by the AVX2 sources. Included only by *_avx2.cpp.
// Zen 3 multiplies bytes and words on two of its four vector pipes and starts about three such
// operations per cycle in all, so operations per 32 k count. Broadcasts are inline assembly,
// because compilers keep them in registers and spill the sums.
#pragma once

#include <immintrin.h>

#include "ops/cpu/gemm/kernels_avx2.h"

namespace braid::cpu::avx2 {

#define BRAID_INLINE __attribute__((always_inline)) inline

// s += pairs(w, x) in 16 bits; w unsigned and x signed bytes, x = four bytes at `quad`.
BRAID_INLINE void add_quad(__m256i& s0, __m256i& s1, __m256i w0, __m256i w1, const int8_t* quad) {
  __m256i x, t;
  asm("vpbroadcastd %[a], %[x]\n\t"
      "vpmaddubsw %[x], %[w0], %[t]\n\t"
      "vpaddw %[t], %[s0], %[s0]\n\t"
      "vpmaddubsw %[x], %[w1], %[x]\n\t"
      "vpaddw %[x], %[s1], %[s1]"
      : [s0] "+x"(s0), [s1] "+x"(s1), [x] "=&x"(x), [t] "=&x"(t)
      : [w0] "x"(w0), [w1] "x"(w1), [a] "m"(*reinterpret_cast<const int32_t*>(quad)));
}
BRAID_INLINE void set_quad(__m256i& s0, __m256i& s1, __m256i w0, __m256i w1, const int8_t* quad) {
  asm("vpbroadcastd %[a], %[s1]\n\t"
      "vpmaddubsw %[s1], %[w0], %[s0]\n\t"
      "vpmaddubsw %[s1], %[w1], %[s1]"
      : [s0] "=&x"(s0), [s1] "=&x"(s1)
      : [w0] "x"(w0), [w1] "x"(w1), [a] "m"(*reinterpret_cast<const int32_t*>(quad)));
}
// sum += scale * (two quads), 8 rows.
BRAID_INLINE void add_two_quads(__m256i& sum, __m256i w0, __m256i w1, __m256i scale,
                                const int8_t* quads) {
  __m256i x, t;
  asm("vpbroadcastd %[a], %[x]\n\t"
      "vpmaddubsw %[x], %[w0], %[t]\n\t"
      "vpbroadcastd %[b], %[x]\n\t"
      "vpmaddubsw %[x], %[w1], %[x]\n\t"
      "vpaddw %[x], %[t], %[t]\n\t"
      "vpmaddwd %[t], %[scale], %[t]\n\t"
      "vpaddd %[t], %[sum], %[sum]"
      : [sum] "+x"(sum), [x] "=&x"(x), [t] "=&x"(t)
      : [w0] "x"(w0), [w1] "x"(w1), [scale] "x"(scale),
        [a] "m"(*reinterpret_cast<const int32_t*>(quads)),
        [b] "m"(*reinterpret_cast<const int32_t*>(quads + 4)));
}

BRAID_INLINE void add_one(__m256i& s, __m256i w, const int8_t* quad) {
  __m256i x;
  asm("vpbroadcastd %[a], %[x]\n\t"
      "vpmaddubsw %[x], %[w], %[x]\n\t"
      "vpaddw %[x], %[s], %[s]"
      : [s] "+x"(s), [x] "=&x"(x)
      : [w] "x"(w), [a] "m"(*reinterpret_cast<const int32_t*>(quad)));
}
BRAID_INLINE void set_one(__m256i& s, __m256i w, const int8_t* quad) {
  s = _mm256_maddubs_epi16(w, _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(quad)));
}
// The first pair of words of a sum: s = pairs(w, x) in 32 bits, x = two words at `pair`.
BRAID_INLINE void set_pair(__m256i& s0, __m256i& s1, __m256i w0, __m256i w1, const int16_t* pair) {
  asm("vpbroadcastd %[a], %[s1]\n\t"
      "vpmaddwd %[s1], %[w0], %[s0]\n\t"
      "vpmaddwd %[s1], %[w1], %[s1]"
      : [s0] "=&x"(s0), [s1] "=&x"(s1)
      : [w0] "x"(w0), [w1] "x"(w1), [a] "m"(*reinterpret_cast<const int32_t*>(pair)));
}

BRAID_INLINE __m256i load256(const void* p) {
  return _mm256_load_si256(static_cast<const __m256i*>(p));
}
BRAID_INLINE void store256(void* p, __m256i v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }
BRAID_INLINE __m128i load128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
BRAID_INLINE __m256 load_half8(const uint16_t* p) { return _mm256_cvtph_ps(load128(p)); }

BRAID_INLINE const char* ahead_of(const Job& job, const void* weights) {
  return static_cast<const char*>(weights) + job.ahead_bytes;
}
BRAID_INLINE void prefetch_lines(const char* p, int lines) {
#pragma GCC unroll 8
  for (int i = 0; i < lines; i++) _mm_prefetch(p + 64 * i, _MM_HINT_T0);
}

BRAID_INLINE int64_t job_row(const Job& job, int64_t m) {
  return job.row != nullptr ? job.row[m] : job.first + m;
}

}  // namespace braid::cpu::avx2
