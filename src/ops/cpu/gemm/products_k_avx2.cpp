// products_k_avx2.cpp -- Q4_K, Q5_K and Q6_K weights on AVX2.
//
// Codes are unsigned and small, so vpmaddubsw sums of several quads fit 16 bits: all 8 of a group
// for 4 bits (at most 30,480), 4 for 5 bits, 2 for 6 bits. One vpmaddwd by the group's integer
// scale, instead of ones, widens and scales the sums.
//
// Few rows: tiles are unpacked in registers, for one or two activation rows at a time. Many rows:
// 256 k of a row group are unpacked to bytes once (4 KB, stays in L1), for four rows at a time.
// Both make the same exact integers and the same float operations in the same order.

#if defined(__x86_64__)

#include "ops/cpu/gemm/codes_avx2.h"

namespace braid::cpu::avx2 {
namespace {

// Q5_K, 32 k of 8 rows: the codes of a group take the registers.
template <int M>
BRAID_INLINE void group_5(const W5K& tile, int g, int half, const ActCodes* const* x,
                          const ActHead* const* head, __m256 (*f)[2], __m256 (*mins)[2]) {
  __m256i code[8], s[M], t[M];
  group_codes(tile, g, half, code);
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; quad++) {
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) {
      const int8_t* q = x[m]->q + 32 * g + 4 * quad;
      if (quad == 0) {
        set_one(s[m], code[quad], q);
        set_one(t[m], code[quad + 4], q + 16);
      } else {
        add_one(s[m], code[quad], q);
        add_one(t[m], code[quad + 4], q + 16);
      }
    }
  }
  const __m256i scale = double_words(tile.scale[g], half);
  const __m256 min = bytes_to_float(tile.min[g], half);
#pragma GCC unroll 2
  for (int m = 0; m < M; m++) {
    const __m256i sum =
        _mm256_add_epi32(_mm256_madd_epi16(s[m], scale), _mm256_madd_epi16(t[m], scale));
    f[m][half] =
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(head[m]->d + g), f[m][half]);
    mins[m][half] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(head[m]->dsum + g), mins[m][half]);
  }
}

// Q4_K, one row: both groups of a byte and all 16 rows in one pass, one load per line.
BRAID_INLINE void pair_4(const W4K& tile, int g, const ActCodes& x, const ActHead& head, __m256* f,
                         __m256* mins) {
  const __m256i mask = _mm256_set1_epi8(15);
  __m256i s[2][2];
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) {
    const uint8_t* q = tile.q[g >> 1][quad];
    const __m256i x0 = load256(q), x1 = load256(q + 32);
    const int8_t* a = x.q + 32 * g + 4 * quad;
    const __m256i low0 = _mm256_and_si256(x0, mask), low1 = _mm256_and_si256(x1, mask);
    const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(x0, 4), mask);
    const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(x1, 4), mask);
    if (quad == 0) {
      set_quad(s[0][0], s[0][1], low0, low1, a);
      set_quad(s[1][0], s[1][1], high0, high1, a + 32);
    } else {
      add_quad(s[0][0], s[0][1], low0, low1, a);
      add_quad(s[1][0], s[1][1], high0, high1, a + 32);
    }
  }
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; odd++) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const __m256i sum = _mm256_madd_epi16(s[odd][half], double_words(tile.scale[g + odd], half));
      f[half] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(head.d + g + odd), f[half]);
      mins[half] = _mm256_fmadd_ps(bytes_to_float(tile.min[g + odd], half),
                                   _mm256_broadcast_ss(head.dsum + g + odd), mins[half]);
    }
  }
}

// Q4_K, two rows: one group, 16 rows.
BRAID_INLINE void group_4x2(const W4K& tile, int g, const ActCodes* const* x,
                            const ActHead* const* head, __m256 (*f)[2], __m256 (*mins)[2]) {
  const __m256i mask = _mm256_set1_epi8(15);
  __m256i s[2][2];
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) {
    const uint8_t* q = tile.q[g >> 1][quad];
    const __m256i x0 = load256(q), x1 = load256(q + 32);
    const __m256i w0 = _mm256_and_si256((g & 1) != 0 ? _mm256_srli_epi16(x0, 4) : x0, mask);
    const __m256i w1 = _mm256_and_si256((g & 1) != 0 ? _mm256_srli_epi16(x1, 4) : x1, mask);
#pragma GCC unroll 2
    for (int m = 0; m < 2; m++) {
      const int8_t* a = x[m]->q + 32 * g + 4 * quad;
      if (quad == 0) {
        set_quad(s[m][0], s[m][1], w0, w1, a);
      } else {
        add_quad(s[m][0], s[m][1], w0, w1, a);
      }
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    const __m256i scale = double_words(tile.scale[g], half);
    const __m256 min = bytes_to_float(tile.min[g], half);
#pragma GCC unroll 2
    for (int m = 0; m < 2; m++) {
      const __m256i sum = _mm256_madd_epi16(s[m][half], scale);
      f[m][half] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(head[m]->d + g), f[m][half]);
      mins[m][half] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(head[m]->dsum + g), mins[m][half]);
    }
  }
}

template <int M, typename Tile>
void few_45(const Job& job, const Tile* tile, int64_t m0, float* out) {
  __m256 acc[M][2];
  for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  const int64_t blocks = job.k / kBlockK;
  for (int64_t b = 0; b < blocks; b++, tile++) {
    const ActCodes* x[M];
    const ActHead* head[M];
    __m256 f[M][2], mins[M][2];
    for (int m = 0; m < M; m++) {
      const int64_t at = b * job.act.rows + job_row(job, m0 + m);
      x[m] = job.act.codes + at;
      head[m] = job.act.head + at;
      f[m][0] = f[m][1] = mins[m][0] = mins[m][1] = _mm256_setzero_ps();
    }
#pragma GCC unroll 1
    for (int g = 0; g < 8; g += 2) {
      if constexpr (sizeof(Tile) == sizeof(W5K)) {
        prefetch_lines(ahead_of(job, tile->q[g]), 5);
        prefetch_lines(ahead_of(job, tile->q[g + 1]), 5);
      } else {
        prefetch_lines(ahead_of(job, tile->q[g / 2]), 8);
      }
      if constexpr (sizeof(Tile) == sizeof(W5K)) {
        group_5<M>(*tile, g, 0, x, head, f, mins);
        group_5<M>(*tile, g, 1, x, head, f, mins);
        group_5<M>(*tile, g | 1, 0, x, head, f, mins);
        group_5<M>(*tile, g | 1, 1, x, head, f, mins);
      } else if constexpr (M == 1) {
        pair_4(*tile, g, *x[0], *head[0], f[0], mins[0]);
      } else {
        group_4x2(*tile, g, x, head, f, mins);
        group_4x2(*tile, g | 1, x, head, f, mins);
      }
    }
    for (int half = 0; half < 2; half++) {
      const __m256 d = load_half8(tile->d + 8 * half), dmin = load_half8(tile->dmin + 8 * half);
      for (int m = 0; m < M; m++) {
        acc[m][half] = _mm256_fmadd_ps(d, f[m][half], acc[m][half]);
        acc[m][half] = _mm256_fnmadd_ps(dmin, mins[m][half], acc[m][half]);
      }
    }
  }
  for (int m = 0; m < M; m++) {
    _mm256_storeu_ps(out + (m0 + m) * job.out_stride, acc[m][0]);
    _mm256_storeu_ps(out + (m0 + m) * job.out_stride + 8, acc[m][1]);
  }
}

// Q6_K, a group of 16 k. The 16-bit sums start at -32 times the sum of their activations and may
// wrap on the way. The final sum of 4 quads, with code - 32 (-32..31), fits: 8 * 32 * 127 = 32,512.
BRAID_INLINE __m256i start_6(const ActHead& head, int g) {
  int32_t both;
  __builtin_memcpy(&both, head.start6[g], 4);
  return _mm256_set1_epi32(both);
}

template <int M>
BRAID_INLINE void sub_6(const W6K& tile, int sub, int half, const ActCodes* const* x,
                        const ActHead* const* head, __m256 (*f)[2]) {
  __m256i sum[M];
  const Scales6 scale = scales_6(tile, sub, half);
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; odd++) {
    __m256i code[4];
    group_codes(tile, 2 * sub + odd, half, code);
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) {
      __m256i s = start_6(*head[m], 2 * sub + odd);
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; quad++)
        add_one(s, code[quad], x[m]->q + 32 * sub + 16 * odd + 4 * quad);
      const __m256i scaled = _mm256_madd_epi16(s, scale.of[odd]);
      sum[m] = odd == 0 ? scaled : _mm256_add_epi32(sum[m], scaled);
    }
  }
#pragma GCC unroll 2
  for (int m = 0; m < M; m++) {
    f[m][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[m]), _mm256_broadcast_ss(head[m]->d + sub),
                                 f[m][half]);
  }
}

template <int M>
void few_6(const Job& job, const W6K* tile, int64_t m0, float* out) {
  __m256 acc[M][2];
  for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  const int64_t blocks = job.k / kBlockK;
  for (int64_t b = 0; b < blocks; b++, tile++) {
    const ActCodes* x[M];
    const ActHead* head[M];
    __m256 f[M][2];
    for (int m = 0; m < M; m++) {
      const int64_t at = b * job.act.rows + job_row(job, m0 + m);
      x[m] = job.act.codes + at;
      head[m] = job.act.head + at;
      f[m][0] = f[m][1] = _mm256_setzero_ps();
    }
#pragma GCC unroll 1
    for (int sub = 0; sub < 8; sub++) {
      prefetch_lines(ahead_of(job, tile->q[2 * sub]), 6);
      sub_6<M>(*tile, sub, 0, x, head, f);
      sub_6<M>(*tile, sub, 1, x, head, f);
    }
    for (int half = 0; half < 2; half++) {
      const __m256 d = load_half8(tile->d + 8 * half);
      for (int m = 0; m < M; m++) acc[m][half] = _mm256_fmadd_ps(d, f[m][half], acc[m][half]);
    }
  }
  for (int m = 0; m < M; m++) {
    _mm256_storeu_ps(out + (m0 + m) * job.out_stride, acc[m][0]);
    _mm256_storeu_ps(out + (m0 + m) * job.out_stride + 8, acc[m][1]);
  }
}

// Many rows: 256 k of a row group, unpacked.
struct alignas(64) Panel {
  uint8_t q[8][8][2][32];    // [32 k][quad][rows 0-7, 8-15]
  int16_t scale[16][2][16];  // (s, s) words; groups of 32 (8 of them) or of 16
  float min[8][16];
  float d[16], dmin[16];
};
static_assert(sizeof(Panel) <= kScratchBytes);

void load_factors(const uint16_t* from, float* to) {
  _mm256_store_ps(to, load_half8(from));
  _mm256_store_ps(to + 8, load_half8(from + 8));
}

template <typename Tile>
void unpack_45(const Tile& tile, Panel* panel) {
  for (int pair = 0; pair < 4; pair++) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++) {
      const int g = 2 * pair + odd;
      for (int half = 0; half < 2; half++) {
        __m256i code[8];
        if (odd == 0) {
          group_codes(tile, 2 * pair, half, code);
        } else {
          group_codes(tile, 2 * pair | 1, half, code);
        }
        for (int quad = 0; quad < 8; quad++) store256(panel->q[g][quad][half], code[quad]);
        store256(panel->scale[g][half], double_words(tile.scale[g], half));
        _mm256_store_ps(panel->min[g] + 8 * half, bytes_to_float(tile.min[g], half));
      }
    }
  }
  load_factors(tile.d, panel->d);
  load_factors(tile.dmin, panel->dmin);
}

void unpack_6(const W6K& tile, Panel* panel) {
  for (int half = 0; half < 2; half++) {
    for (int sub = 0; sub < 8; sub++) {
      for (int odd = 0; odd < 2; odd++) {
        __m256i code[4];
        group_codes(tile, 2 * sub + odd, half, code);
        for (int quad = 0; quad < 4; quad++)
          store256(panel->q[sub][4 * odd + quad][half], code[quad]);
      }
      const Scales6 scale = scales_6(tile, sub, half);
      store256(panel->scale[2 * sub][half], scale.of[0]);
      store256(panel->scale[2 * sub + 1][half], scale.of[1]);
    }
  }
  load_factors(tile.d, panel->d);
}
void unpack(const W4K& tile, Panel* panel) { unpack_45(tile, panel); }
void unpack(const W5K& tile, Panel* panel) { unpack_45(tile, panel); }
void unpack(const W6K& tile, Panel* panel) { unpack_6(tile, panel); }

BRAID_INLINE void add_scaled(float* f, __m256i sum, const float* d) {
  _mm256_store_ps(
      f, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(d), _mm256_load_ps(f)));
}

template <int M, typename Tile>
void panel_45(const Panel& panel, const ActCodes* const* x, const ActHead* const* head,
              float* const* out) {
  constexpr bool five = sizeof(Tile) == sizeof(W5K);
  alignas(32) float f[M][16] = {};
  alignas(32) int32_t first[M][16];
  for (int g = 0; g < 8; g++) {
#pragma GCC unroll 2
    for (int part = 0; part < (five ? 2 : 1); part++) {
      constexpr int quads = five ? 4 : 8;
      __m256i s[M][2];
#pragma GCC unroll 8
      for (int i = 0; i < quads; i++) {
        const int quad = part * quads + i;
        const __m256i w0 = load256(panel.q[g][quad][0]), w1 = load256(panel.q[g][quad][1]);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const int8_t* q = x[m]->q + 32 * g + 4 * quad;
          if (i == 0) {
            set_quad(s[m][0], s[m][1], w0, w1, q);
          } else {
            add_quad(s[m][0], s[m][1], w0, w1, q);
          }
        }
      }
      const __m256i scale0 = load256(panel.scale[g][0]), scale1 = load256(panel.scale[g][1]);
      if constexpr (five) {
        // The two halves of a group must become one integer before it is rounded to float.
        for (int m = 0; m < M; m++) {
          const __m256i a = _mm256_madd_epi16(s[m][0], scale0),
                        b = _mm256_madd_epi16(s[m][1], scale1);
          if (part == 0) {
            store256(first[m], a);
            store256(first[m] + 8, b);
          } else {
            add_scaled(f[m], _mm256_add_epi32(a, load256(first[m])), head[m]->d + g);
            add_scaled(f[m] + 8, _mm256_add_epi32(b, load256(first[m] + 8)), head[m]->d + g);
          }
        }
      } else {
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          add_scaled(f[m], _mm256_madd_epi16(s[m][0], scale0), head[m]->d + g);
          add_scaled(f[m] + 8, _mm256_madd_epi16(s[m][1], scale1), head[m]->d + g);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    __m256 mins[M];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
      const __m256 min = _mm256_load_ps(panel.min[g] + 8 * half);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const __m256 before = g == 0 ? _mm256_setzero_ps() : mins[m];
        mins[m] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(head[m]->dsum + g), before);
      }
    }
    const __m256 d = _mm256_load_ps(panel.d + 8 * half),
                 dmin = _mm256_load_ps(panel.dmin + 8 * half);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const __m256 acc =
          _mm256_fmadd_ps(d, _mm256_load_ps(f[m] + 8 * half), _mm256_loadu_ps(out[m] + 8 * half));
      _mm256_storeu_ps(out[m] + 8 * half, _mm256_fnmadd_ps(dmin, mins[m], acc));
    }
  }
}

template <int M>
void panel_6(const Panel& panel, const ActCodes* const* x, const ActHead* const* head,
             float* const* out) {
#pragma GCC unroll 1
  for (int half = 0; half < 2; half++) {
    __m256 f[M];
    for (int m = 0; m < M; m++) f[m] = _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int sub = 0; sub < 8; sub++) {
      __m256i sum[M];
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++) {
        __m256i s[M];
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; quad++) {
          const __m256i w = load256(panel.q[sub][4 * odd + quad][half]);
#pragma GCC unroll 4
          for (int m = 0; m < M; m++) {
            if (quad == 0) s[m] = start_6(*head[m], 2 * sub + odd);
            add_one(s[m], w, x[m]->q + 32 * sub + 16 * odd + 4 * quad);
          }
        }
        const __m256i scale = load256(panel.scale[2 * sub + odd][half]);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const __m256i scaled = _mm256_madd_epi16(s[m], scale);
          sum[m] = odd == 0 ? scaled : _mm256_add_epi32(sum[m], scaled);
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        f[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[m]), _mm256_broadcast_ss(head[m]->d + sub),
                               f[m]);
      }
    }
    const __m256 d = _mm256_load_ps(panel.d + 8 * half);
    for (int m = 0; m < M; m++) {
      _mm256_storeu_ps(out[m] + 8 * half,
                       _mm256_fmadd_ps(d, f[m], _mm256_loadu_ps(out[m] + 8 * half)));
    }
  }
}

template <int M, typename Tile>
BRAID_INLINE void panel_rows(const Panel& panel, const ActCodes* const* x,
                             const ActHead* const* head, float* const* out) {
  if constexpr (sizeof(Tile) == sizeof(W6K)) {
    panel_6<M>(panel, x, head, out);
  } else {
    panel_45<M, Tile>(panel, x, head, out);
  }
}

template <typename Tile>
void many(const Job& job) {
  auto* panel = reinterpret_cast<Panel*>(job.scratch);
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tiles =
        reinterpret_cast<const Tile*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    for (int64_t m = 0; m < job.rows; m++) {
      float* out = job.out + m * job.out_stride + 16 * g;
      _mm256_storeu_ps(out, _mm256_setzero_ps());
      _mm256_storeu_ps(out + 8, _mm256_setzero_ps());
    }
    for (int64_t b = 0; b < job.k / kBlockK; b++) {
      unpack(tiles[b], panel);
      for (int64_t m = 0; m < job.rows; m += 4) {
        const int64_t count = job.rows - m < 4 ? job.rows - m : 4;
        const ActCodes* x[4];
        const ActHead* head[4];
        float* out[4];
        for (int64_t i = 0; i < count; i++) {
          const int64_t at = b * job.act.rows + job_row(job, m + i);
          x[i] = job.act.codes + at;
          head[i] = job.act.head + at;
          out[i] = job.out + (m + i) * job.out_stride + 16 * g;
        }
        switch (count) {
          case 4:
            panel_rows<4, Tile>(*panel, x, head, out);
            break;
          case 3:
            panel_rows<3, Tile>(*panel, x, head, out);
            break;
          case 2:
            panel_rows<2, Tile>(*panel, x, head, out);
            break;
          default:
            panel_rows<1, Tile>(*panel, x, head, out);
            break;
        }
      }
    }
  }
}

template <typename Tile, void (*two)(const Job&, const Tile*, int64_t, float*),
          void (*one)(const Job&, const Tile*, int64_t, float*)>
void few(const Job& job) {
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tiles =
        reinterpret_cast<const Tile*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    int64_t m = 0;
    for (; m + 2 <= job.rows; m += 2) two(job, tiles, m, job.out + 16 * g);
    if (m < job.rows) one(job, tiles, m, job.out + 16 * g);
  }
}

}  // namespace

void w4k_few(const Job& job) { few<W4K, few_45<2, W4K>, few_45<1, W4K>>(job); }
void w5k_few(const Job& job) { few<W5K, few_45<2, W5K>, few_45<1, W5K>>(job); }
void w6k_few(const Job& job) { few<W6K, few_6<2>, few_6<1>>(job); }
void w4k_many(const Job& job) { many<W4K>(job); }
void w5k_many(const Job& job) { many<W5K>(job); }
void w6k_many(const Job& job) { many<W6K>(job); }

}  // namespace braid::cpu::avx2

#endif
