// codes_avx512.h -- codes and scales of K-quant tiles in AVX-512 registers. Only for *_avx512.cpp.
#pragma once

#include "ops/cpu/gemm/products_avx512.h"

namespace braid::cpu::avx512 {

template <typename Tile>
struct PrefetchOf {
  using type = Ahead<kIntoL1, 4608>;
};
template <>
struct PrefetchOf<W6K> {
  using type = Ahead<kIntoL2, 7168>;
};
template <typename Tile>
using Prefetch = typename PrefetchOf<Tile>::type;

BRAID_INLINE __m512i bits(int b) { return _mm512_set1_epi8(static_cast<char>(b)); }
BRAID_INLINE __m512i shifted(__m512i x, int count, int kept) {
  return _mm512_and_si512(_mm512_srli_epi16(x, static_cast<unsigned>(count)), bits(kept));
}
BRAID_INLINE __m512i or_shifted(__m512i a, __m512i x, int count, int kept) {
  return _mm512_ternarylogic_epi32(a, _mm512_srli_epi16(x, static_cast<unsigned>(count)),
                                   bits(kept), 0xf8);
}

// Unpacks the codes of 8 quads (32 k) and prefetches their lines in a later tile.

BRAID_INLINE void codes_of(const W4K& tile, int sub, bool odd, __m512i* code) {
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) {
    const __m512i x = load512(tile.q[sub >> 1][quad]);
    if (!odd) Prefetch<W4K>::line(tile.q[sub >> 1][quad]);
    code[quad] = odd ? shifted(x, 4, 15) : _mm512_and_si512(x, bits(15));
  }
}
BRAID_INLINE void five_bit_codes(const uint8_t (*lines)[64], __m512i* code) {
  __m512i x[5];
#pragma GCC unroll 5
  for (int i = 0; i < 5; i++) {
    x[i] = load512(lines[i]);
    Prefetch<W5K>::line(lines[i]);
    code[i] = _mm512_and_si512(x[i], bits(31));
  }
  code[5] = or_shifted(shifted(x[0], 3, 0x1c), x[3], 6, 3);
  code[6] = or_shifted(shifted(x[1], 3, 0x1c), x[4], 6, 3);
  code[7] = or_shifted(or_shifted(shifted(x[2], 3, 0x1c), x[3], 4, 2), x[4], 5, 1);
}
BRAID_INLINE void codes_of(const W5K& tile, int sub, bool, __m512i* code) {
  five_bit_codes(tile.q[sub], code);
}
BRAID_INLINE void codes_of(const W6K& tile, int sub, bool, __m512i* code) {
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++) {
    __m512i x[3];
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
      x[i] = load512(tile.q[2 * sub + g][i]);
      Prefetch<W6K>::line(tile.q[2 * sub + g][i]);
      code[4 * g + i] = _mm512_and_si512(x[i], bits(63));
    }
    code[4 * g + 3] = or_shifted(or_shifted(shifted(x[0], 6, 3), x[1], 4, 12), x[2], 2, 48);
  }
}

struct Scales6 {
  __m512 first, second;
};
BRAID_INLINE Scales6 scales_6(const W6K& tile, int sub) {
  const __m512i pairs =
      _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(tile.scale[sub])));
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16)),
          _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16))};
}

}  // namespace braid::cpu::avx512
