// products_w8_avx2.cpp -- Q8_0 weights on AVX2.
//
// 8-bit codes times 8-bit activations overflow the 16-bit sums of vpmaddubsw. Two forms avoid that
// with four operations per 32 products; both are exact integer sums per 32 k:
// - Few rows: the activation is split into two nibble planes. code + 128 (unsigned) times a plane
//   sums over 8 quads in 16 bits, so tiles are multiplied in place: 16 * high + low - 128 * sum.
// - Many rows: 256 k of a row group are widened to words once (8 KB, in L1) for vpmaddwd.
//
// The speed of many rows depends on the order of operations. Alternating multiplies and additions
// reach 2.7 per cycle, as additions then use the multiply pipes. In pairs, with additions delayed
// by a row, they reach 3.6. Tiles of 5 rows are fastest and fill the 16 registers.
//
// Slower in trials on Zen 3: abs / sign before vpmaddubsw; vpmovsxbw in the inner loop; a share of
// the products by FMA; half the multiplies by (w0 + x1) (w1 + x0) - w0 w1 - x0 x1; 6 rows without
// the delay; activation codes as 2 h - b with table look-ups for b.

#if defined(__x86_64__)

#include "ops/cpu/gemm/products_avx2.h"

namespace braid::cpu::avx2 {
namespace {

// add_one (products_avx2.h) with the four bytes already in x.
BRAID_INLINE void add_shared(__m256i& s, __m256i w, __m256i x) {
  __m256i t;
  asm("vpmaddubsw %[x], %[w], %[t]\n\tvpaddw %[t], %[s], %[s]"
      : [s] "+x"(s), [t] "=&x"(t)
      : [w] "x"(w), [x] "x"(x));
}

BRAID_INLINE __m256i four_bytes(const int8_t* quad) {
  return _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(quad));
}

// acc += the sub-block whose 16-bit sums with the two planes of x are `high` and `low` (8 rows).
BRAID_INLINE void add_block(__m256& acc, __m256i high, __m256i low, const uint16_t* d,
                            const ActHead& x, int sub) {
  const __m256i sixteen = _mm256_set1_epi16(16), one = _mm256_set1_epi16(1);
  const __m256i start = _mm256_slli_epi32(_mm256_set1_epi32(x.sum[sub]), 7);
  const __m256i sum =
      _mm256_add_epi32(_mm256_madd_epi16(high, sixteen), _mm256_madd_epi16(low, one));
  const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(sum, start)),
                                      _mm256_broadcast_ss(x.d + sub));
  acc = _mm256_fmadd_ps(scaled, load_half8(d), acc);
}

// With two groups every broadcast serves 32 rows; with one, load ports are the limit.
template <int G>
void one_row(const Job& job, const std::byte* tiles, int64_t m, float* out) {
  const ActView& a = job.act;
  const int64_t row = job_row(job, m);
  __m256 acc[G][2];
  for (int g = 0; g < G; g++) acc[g][0] = acc[g][1] = _mm256_setzero_ps();
  const int64_t blocks = (job.k + 31) / 32;
  for (int64_t b = 0; b < blocks; b++) {
    const int sub = static_cast<int>(b & 7);
    const ActNibbles& x = a.nibbles[(b >> 3) * a.rows + row];
    const ActHead& head = a.head[(b >> 3) * a.rows + row];
    const W8* tile[G];
    for (int g = 0; g < G; g++) {
      tile[g] =
          reinterpret_cast<const W8*>(tiles + static_cast<size_t>(g) * job.group_bytes) + (b >> 1);
    }
    __m256i high[G][2], low[G][2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      const __m256i x_high = four_bytes(x.high + 32 * sub + 4 * i),
                    x_low = four_bytes(x.low + 32 * sub + 4 * i);
#pragma GCC unroll 2
      for (int g = 0; g < G; g++) {
        const uint8_t* q = tile[g]->q[8 * (b & 1) + i];
        _mm_prefetch(ahead_of(job, q), _MM_HINT_T0);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
          const __m256i w = load256(q + 32 * half);
          if (i == 0) {
            high[g][half] = _mm256_maddubs_epi16(w, x_high);
            low[g][half] = _mm256_maddubs_epi16(w, x_low);
          } else {
            add_shared(high[g][half], w, x_high);
            add_shared(low[g][half], w, x_low);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int g = 0; g < G; g++) {
      const uint16_t* d = tile[g]->d[b & 1];
      add_block(acc[g][0], high[g][0], low[g][0], d, head, sub);
      add_block(acc[g][1], high[g][1], low[g][1], d + 8, head, sub);
    }
  }
  for (int g = 0; g < G; g++) {
    _mm256_storeu_ps(out + m * job.out_stride + 16 * g, acc[g][0]);
    _mm256_storeu_ps(out + m * job.out_stride + 16 * g + 8, acc[g][1]);
  }
}

void two_rows(const Job& job, const W8* tile, int64_t m0, float* out) {
  constexpr int M = 2;
  const ActView& a = job.act;
  const int64_t row[M] = {job_row(job, m0), job_row(job, m0 + 1)};
  __m256 acc[M][2];
  for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = _mm256_setzero_ps();
  const int64_t blocks = (job.k + 31) / 32;
  for (int64_t b = 0; b < blocks; b++) {
    const int half = static_cast<int>(b & 1), sub = static_cast<int>(b & 7);
    const uint8_t* q = tile[b >> 1].q[8 * half];
    const int64_t block = (b >> 3) * a.rows;
    __m256i h[M][2], l[M][2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      const __m256i w0 = load256(q + 64 * i), w1 = load256(q + 64 * i + 32);
      _mm_prefetch(ahead_of(job, q + 64 * i), _MM_HINT_T0);
#pragma GCC unroll 2
      for (int m = 0; m < M; m++) {
        const ActNibbles& x = a.nibbles[block + row[m]];
        if (i == 0) {
          set_quad(h[m][0], h[m][1], w0, w1, x.high + 32 * sub);
          set_quad(l[m][0], l[m][1], w0, w1, x.low + 32 * sub);
        } else {
          add_quad(h[m][0], h[m][1], w0, w1, x.high + 32 * sub + 4 * i);
          add_quad(l[m][0], l[m][1], w0, w1, x.low + 32 * sub + 4 * i);
        }
      }
    }
    const uint16_t* d = tile[b >> 1].d[half];
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) {
      add_block(acc[m][0], h[m][0], l[m][0], d, a.head[block + row[m]], sub);
      add_block(acc[m][1], h[m][1], l[m][1], d + 8, a.head[block + row[m]], sub);
    }
  }
  for (int m = 0; m < M; m++) {
    _mm256_storeu_ps(out + (m0 + m) * job.out_stride, acc[m][0]);
    _mm256_storeu_ps(out + (m0 + m) * job.out_stride + 8, acc[m][1]);
  }
}

struct alignas(64) Panel {
  // [pair: elements 0 2 or 1 3 of a quad][rows 0-7, 8-15][row, element]
  int16_t w[kSubBlocks][16][2][16];
  float d[kSubBlocks][16];
};
static_assert(sizeof(Panel) <= kScratchBytes);

void widen(const W8* tiles, int64_t first, int subs, Panel* panel) {
  const __m256i low = _mm256_set1_epi16(255), offset = _mm256_set1_epi16(128);
  for (int sub = 0; sub < subs; sub++) {
    const W8& tile = tiles[(first + sub) >> 1];
    const int half = static_cast<int>((first + sub) & 1);
    for (int quad = 0; quad < 8; quad++) {
      const uint8_t* q = tile.q[8 * half + quad];
      for (int rows = 0; rows < 2; rows++) {
        const __m256i w = load256(q + 32 * rows);
        store256(panel->w[sub][2 * quad][rows], _mm256_sub_epi16(_mm256_and_si256(w, low), offset));
        store256(panel->w[sub][2 * quad + 1][rows],
                 _mm256_sub_epi16(_mm256_srli_epi16(w, 8), offset));
      }
    }
    _mm256_store_ps(panel->d[sub], load_half8(tile.d[half]));
    _mm256_store_ps(panel->d[sub] + 8, load_half8(tile.d[half] + 8));
  }
}

struct Products2 {
  __m256i t0, t1;
};
BRAID_INLINE Products2 multiply_pair(__m256i w0, __m256i w1, const int16_t* pair) {
  Products2 p;
  asm("vpbroadcastd %[a], %[t1]\n\t"
      "vpmaddwd %[t1], %[w0], %[t0]\n\t"
      "vpmaddwd %[t1], %[w1], %[t1]"
      : [t0] "=&x"(p.t0), [t1] "=&x"(p.t1)
      : [w0] "x"(w0), [w1] "x"(w1), [a] "m"(*reinterpret_cast<const int32_t*>(pair)));
  return p;
}
// As above; also adds `before`, products of the previous row that need not wait for a multiply.
BRAID_INLINE Products2 multiply_and_add(__m256i& s0, __m256i& s1, const Products2& before,
                                        __m256i w0, __m256i w1, const int16_t* pair) {
  Products2 p;
  asm("vpbroadcastd %[a], %[t1]\n\t"
      "vpmaddwd %[t1], %[w0], %[t0]\n\t"
      "vpmaddwd %[t1], %[w1], %[t1]\n\t"
      "vpaddd %[b0], %[s0], %[s0]\n\t"
      "vpaddd %[b1], %[s1], %[s1]"
      : [s0] "+x"(s0), [s1] "+x"(s1), [t0] "=&x"(p.t0), [t1] "=&x"(p.t1)
      : [b0] "x"(before.t0), [b1] "x"(before.t1), [w0] "x"(w0), [w1] "x"(w1),
        [a] "m"(*reinterpret_cast<const int32_t*>(pair)));
  return p;
}

constexpr int kPanelRows = 5;

template <int M>
void panel_rows(const Panel& panel, int subs, const ActWide* const* wide,
                const ActHead* const* head, float* out, int64_t out_stride) {
  for (int sub = 0; sub < subs; sub++) {
    __m256i s[M][2];
    Products2 last;
#pragma GCC unroll 16
    for (int p = 0; p < 16; p++) {
      const __m256i w0 = load256(panel.w[sub][p][0]), w1 = load256(panel.w[sub][p][1]);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const int16_t* pair = wide[m]->q + 32 * sub + 2 * p;
        // The next tile's line: with a large k the rows of all blocks do not stay in L2.
        if (p == 2 * m + 2)
          _mm_prefetch(reinterpret_cast<const char*>(pair + M * kBlockK), _MM_HINT_T0);
        if (p == 0) {
          set_pair(s[m][0], s[m][1], w0, w1, pair);
        } else if (p == 1 && m == 0) {
          last = multiply_pair(w0, w1, pair);
        } else {
          __m256i* const before = s[m == 0 ? M - 1 : m - 1];
          last = multiply_and_add(before[0], before[1], last, w0, w1, pair);
        }
      }
    }
    s[M - 1][0] = _mm256_add_epi32(s[M - 1][0], last.t0);
    s[M - 1][1] = _mm256_add_epi32(s[M - 1][1], last.t1);
    const __m256 d0 = _mm256_load_ps(panel.d[sub]), d1 = _mm256_load_ps(panel.d[sub] + 8);
    float* o = out;
#pragma GCC unroll 8
    for (int m = 0; m < M; m++, o += out_stride) {
      const __m256 da = _mm256_broadcast_ss(head[m]->d + sub);
      _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(s[m][0]), da), d0,
                                          _mm256_loadu_ps(o)));
      _mm256_storeu_ps(o + 8, _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(s[m][1]), da), d1,
                                              _mm256_loadu_ps(o + 8)));
    }
  }
}

// How many of the remaining rows to take at once: never one or two after a tile of five.
int64_t panel_count(int64_t rows) {
  if (rows == 6 || rows == 3) return 3;
  if (rows == 7 || rows == 8) return 4;
  return rows < kPanelRows ? rows : kPanelRows;
}

}  // namespace

void w8_few(const Job& job) {
  const auto tiles_of = [&](int64_t g) {
    return job.tiles + static_cast<size_t>(g) * job.group_bytes;
  };
  int64_t m = 0;
  for (; m + 2 <= job.rows; m += 2) {
    for (int64_t g = 0; g < job.groups; g++) {
      two_rows(job, reinterpret_cast<const W8*>(tiles_of(g)), m, job.out + 16 * g);
    }
  }
  if (m == job.rows) return;
  int64_t g = 0;
  for (; g + 2 <= job.groups; g += 2) one_row<2>(job, tiles_of(g), m, job.out + 16 * g);
  if (g < job.groups) one_row<1>(job, tiles_of(g), m, job.out + 16 * g);
}

void w8_many(const Job& job) {
  auto* panel = reinterpret_cast<Panel*>(job.scratch);
  const int64_t subs_all = (job.k + 31) / 32;
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tiles =
        reinterpret_cast<const W8*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    for (int64_t m = 0; m < job.rows; m++) {
      float* out = job.out + m * job.out_stride + 16 * g;
      _mm256_storeu_ps(out, _mm256_setzero_ps());
      _mm256_storeu_ps(out + 8, _mm256_setzero_ps());
    }
    for (int64_t first = 0; first < subs_all; first += kSubBlocks) {
      const int subs =
          static_cast<int>(subs_all - first < kSubBlocks ? subs_all - first : kSubBlocks);
      widen(tiles, first, subs, panel);
      const int64_t block = first / kSubBlocks * job.act.rows;
      for (int64_t m = 0; m < job.rows;) {
        const int64_t count = panel_count(job.rows - m);
        const ActWide* wide[kPanelRows];
        const ActHead* head[kPanelRows];
        float* const out = job.out + m * job.out_stride + 16 * g;
        for (int64_t i = 0; i < count; i++) {
          const int64_t at = block + job_row(job, m + i);
          wide[i] = job.act.wide + at;
          head[i] = job.act.head + at;
        }
        m += count;
        switch (count) {
          case 5:
            panel_rows<5>(*panel, subs, wide, head, out, job.out_stride);
            break;
          case 4:
            panel_rows<4>(*panel, subs, wide, head, out, job.out_stride);
            break;
          case 3:
            panel_rows<3>(*panel, subs, wide, head, out, job.out_stride);
            break;
          case 2:
            panel_rows<2>(*panel, subs, wide, head, out, job.out_stride);
            break;
          default:
            panel_rows<1>(*panel, subs, wide, head, out, job.out_stride);
            break;
        }
      }
    }
  }
}

}  // namespace braid::cpu::avx2

#endif
