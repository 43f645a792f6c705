// decode_avx2.cpp -- tiles to f32 panels [k][16], bitwise the values of decode_panel (repack.h).

#if defined(__x86_64__)

#include "ops/cpu/gemm/codes_avx2.h"
#include "ops/cpu/gemm/decode.h"

namespace braid::cpu::avx2 {
namespace {

BRAID_INLINE __m256 element(__m256i quad, int j, int offset) {
  const __m256i code = _mm256_and_si256(_mm256_srli_epi32(quad, 8 * j), _mm256_set1_epi32(255));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(offset)));
}

void decode_w8(const W8* tiles, int64_t k, int64_t block, float* panel) {
  const int64_t left = k - block * kBlockK;
  const int subs = static_cast<int>((left < kBlockK ? left : kBlockK) / 32);
  for (int sub = 0; sub < subs; sub++) {
    const W8& tile = tiles[block * 4 + sub / 2];
    for (int half = 0; half < 2; half++) {
      const __m256 d = load_half8(tile.d[sub & 1] + 8 * half);
      for (int quad = 0; quad < 8; quad++) {
        const __m256i x = load256(tile.q[8 * (sub & 1) + quad] + 32 * half);
        float* out = panel + (32 * sub + 4 * quad) * 16 + 8 * half;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
          _mm256_store_ps(out + 16 * j, _mm256_mul_ps(element(x, j, 128), d));
      }
    }
  }
}

template <typename Tile>
void decode_45(const Tile& tile, float* panel) {
  for (int half = 0; half < 2; half++) {
    const __m256 d = load_half8(tile.d + 8 * half), dmin = load_half8(tile.dmin + 8 * half);
    for (int pair = 0; pair < 4; pair++) {
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++) {
        const int g = 2 * pair | odd;
        __m256i code[8];
        group_codes(tile, g, half, code);
        const __m256 scale = _mm256_mul_ps(d, bytes_to_float(tile.scale[g], half));
        const __m256 min = _mm256_mul_ps(dmin, bytes_to_float(tile.min[g], half));
        for (int quad = 0; quad < 8; quad++) {
          float* out = panel + (32 * g + 4 * quad) * 16 + 8 * half;
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++) {
            const __m256 product = _mm256_mul_ps(scale, element(code[quad], j, 0));
            _mm256_store_ps(out + 16 * j, _mm256_sub_ps(product, min));
          }
        }
      }
    }
  }
}

void decode_6(const W6K& tile, float* panel) {
  for (int half = 0; half < 2; half++) {
    const __m256 d = load_half8(tile.d + 8 * half);
    for (int g = 0; g < 16; g++) {
      const __m128i pairs = load128(tile.scale[g / 2][8 * half]);  // (even group, odd group)
      const __m128i mine = _mm_srai_epi16((g & 1) != 0 ? pairs : _mm_slli_epi16(pairs, 8), 8);
      const __m256 scale = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(mine)));
      __m256i code[4];
      group_codes(tile, g, half, code);
      for (int quad = 0; quad < 4; quad++) {
        float* out = panel + (16 * g + 4 * quad) * 16 + 8 * half;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
          _mm256_store_ps(out + 16 * j, _mm256_mul_ps(scale, element(code[quad], j, 32)));
      }
    }
  }
}

}  // namespace

void decode(Layout layout, uint32_t raw_type, const std::byte* tiles, int64_t k, int64_t block,
            float* panel) {
  switch (layout) {
    case Layout::w8:
      return decode_w8(reinterpret_cast<const W8*>(tiles), k, block, panel);
    case Layout::w4k:
      return decode_45(reinterpret_cast<const W4K*>(tiles)[block], panel);
    case Layout::w5k:
      return decode_45(reinterpret_cast<const W5K*>(tiles)[block], panel);
    case Layout::w6k:
      return decode_6(reinterpret_cast<const W6K*>(tiles)[block], panel);
#define BRAID_DECODE(l) \
  case Layout::l:       \
    return decode_small<Layout::l>(tiles, k, block, panel);
      BRAID_SMALL_LAYOUTS(BRAID_DECODE)
    default:
      return decode_tiles(layout, raw_type, tiles, k, block, panel);
  }
}

}  // namespace braid::cpu::avx2

#endif
