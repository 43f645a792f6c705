// codes_avx2.h -- codes and scales of K-quant tiles in AVX2 registers. Only for *_avx2.cpp.
#pragma once

#include "ops/cpu/gemm/products_avx2.h"

namespace braid::cpu::avx2 {

BRAID_INLINE void group_codes(const W4K& tile, int g, int half, __m256i* code) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) {
    const __m256i x = load256(tile.q[g >> 1][quad] + 32 * half);
    code[quad] = _mm256_and_si256((g & 1) != 0 ? _mm256_srli_epi16(x, 4) : x, low);
  }
}
// Spare bits are masked before shifts, so that 16-bit shifts do not mix bytes; few constants.
BRAID_INLINE void five_bit_codes(const uint8_t (*lines)[64], int half, __m256i* code) {
  const auto bits = [](int b) { return _mm256_set1_epi8(static_cast<char>(b)); };
  const __m256i three = bits(0xe0), two = bits(0xc0), one = bits(0x20);
  __m256i x[5];
#pragma GCC unroll 5
  for (int i = 0; i < 5; i++) {
    x[i] = load256(lines[i] + 32 * half);
    code[i] = _mm256_andnot_si256(three, x[i]);
  }
  const auto joined = [&](__m256i a, __m256i b) {  // 3 spare bits of a, the upper 2 of b
    return _mm256_srli_epi16(
        _mm256_or_si256(_mm256_and_si256(a, three), _mm256_srli_epi16(_mm256_and_si256(b, two), 3)),
        3);
  };
  code[5] = joined(x[0], x[3]);
  code[6] = joined(x[1], x[4]);
  const __m256i last = _mm256_or_si256(_mm256_srli_epi16(_mm256_and_si256(x[3], one), 1),
                                       _mm256_srli_epi16(_mm256_and_si256(x[4], one), 2));
  code[7] = _mm256_srli_epi16(_mm256_or_si256(_mm256_and_si256(x[2], three), last), 3);
}
BRAID_INLINE void group_codes(const W5K& tile, int g, int half, __m256i* code) {
  five_bit_codes(tile.q[g], half, code);
}
BRAID_INLINE void group_codes(const W6K& tile, int g, int half, __m256i* code) {
  const __m256i two = _mm256_set1_epi8(static_cast<char>(0xc0));
  __m256i spare = _mm256_setzero_si256();
#pragma GCC unroll 3
  for (int i = 0; i < 3; i++) {
    const __m256i x = load256(tile.q[g][i] + 32 * half);
    code[i] = _mm256_andnot_si256(two, x);
    const __m256i top = _mm256_and_si256(x, two);
    spare = _mm256_srli_epi16(i == 0 ? top : _mm256_or_si256(spare, top), 2);
  }
  code[3] = spare;
}

// Shuffles that take bytes of 8 rows out of 16 (in both lanes) as (s, s) words or one integer.
BRAID_INLINE __m256i rows_order(int half, int first, int second, int third, int fourth) {
  const __m256i row = _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404,
                                        0x05050505, 0x06060606, 0x07070707);
  const __m256i taken =
      _mm256_set1_epi32((first & 255) | (second & 255) << 8 | (third & 255) << 16 | fourth << 24);
  // Bytes of -1 stay negative: only bits 0..3 are added to.
  return _mm256_or_si256(taken,
                         _mm256_add_epi8(row, _mm256_set1_epi8(static_cast<char>(8 * half))));
}
BRAID_INLINE __m256i double_words(const uint8_t* scale, int half) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(scale)),
                             rows_order(half, 0, -1, 0, -1));
}
BRAID_INLINE __m256 bytes_to_float(const uint8_t* bytes, int half) {
  return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(bytes)),
                                                rows_order(half, 0, -1, -1, -1)));
}
// Signed scales of W6K, 8 rows of 32 k: (s, s) words of its two groups.
struct Scales6 {
  __m256i of[2];
};
BRAID_INLINE Scales6 scales_6(const W6K& tile, int sub, int half) {
  const __m256i pairs = _mm256_broadcastsi128_si256(load128(tile.scale[sub][8 * half]));
  const __m256i a = _mm256_setr_epi8(-1, 0, -1, 0, -1, 2, -1, 2, -1, 4, -1, 4, -1, 6, -1, 6,  //
                                     -1, 8, -1, 8, -1, 10, -1, 10, -1, 12, -1, 12, -1, 14, -1, 14);
  const __m256i b = _mm256_setr_epi8(-1, 1, -1, 1, -1, 3, -1, 3, -1, 5, -1, 5, -1, 7, -1, 7,  //
                                     -1, 9, -1, 9, -1, 11, -1, 11, -1, 13, -1, 13, -1, 15, -1, 15);
  return {{_mm256_srai_epi16(_mm256_shuffle_epi8(pairs, a), 8),
           _mm256_srai_epi16(_mm256_shuffle_epi8(pairs, b), 8)}};
}

}  // namespace braid::cpu::avx2
