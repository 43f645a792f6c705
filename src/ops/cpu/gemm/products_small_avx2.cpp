// products_small_avx2.cpp -- small types; all quantized types but Q8_0 with int16 activations.
//
// 256 k of a row group are unpacked to bytes (integer + offset; 4 KB, stays in L1) for any number
// of rows; tables are vpshufb. Exact integer sums per 32 k or 16 k follow:
// - bytes: 4-bit codes, 5-bit codes and FP4 times int8. vpmaddubsw sums of 8 quads (4 where a byte
//   is up to 31) fit 16 bits. The sum of the activation's codes removes the offset.
// - planes: few rows of IQ4, whose levels have 8 bits, times two 4-bit planes of int8 codes.
// - words: many rows of IQ4, and int16 activations. Bytes are widened for vpmaddwd.
// The small types add as Q8_0 does; their minima follow once per 256 k (products.h).

#if defined(__x86_64__)

#include "ops/cpu/gemm/codes_avx2.h"

namespace braid::cpu::avx2 {
namespace {

struct alignas(64) Panel {
  uint8_t q[kSubBlocks][8][2][32];  // [32 k][quad][rows 0-7, 8-15]
  // [pair: elements 0 2 or 1 3 of a quad], integers; only for `words`
  int16_t w[kSubBlocks][16][2][16];
  float factor[kSubBlocks][2][16];  // of the first and second 16 k; of 32 k: only the first
  float min[kSubBlocks][16];
  float d[16], dmin[16];  // K-quants
};
static_assert(sizeof(Panel) <= kScratchBytes);

constexpr bool is_k(Layout l) { return l == Layout::w4k || l == Layout::w5k || l == Layout::w6k; }
constexpr bool by_16(Layout l) { return l == Layout::nvfp4 || l == Layout::w6k; }
constexpr int offset_of(Layout l) { return l == Layout::w6k ? 32 : is_k(l) ? 0 : small_offset(l); }

BRAID_INLINE void store_halves(float* to, const uint16_t* from) {
  _mm256_store_ps(to, load_half8(from));
  _mm256_store_ps(to + 8, load_half8(from + 8));
}

enum class Form { bytes, planes, words };

template <Layout L>
BRAID_INLINE __m256i bytes_of(__m256i nibbles) {
  if constexpr (is_iq4(L) || is_fp4(L)) {
    const uint8_t* bytes = is_iq4(L) ? kIq4Bytes : kFp4Bytes;
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(bytes)), nibbles);
  } else {
    return nibbles;
  }
}

template <Layout L, typename Tile>
BRAID_INLINE void unpack_factors(const Tile& tile, int half, int sub, Panel* panel) {
  float* to = panel->factor[sub][0];
  if constexpr (L == Layout::mxfp4) {
    for (int i = 0; i < 16; i += 8) {
      const __m256i d = _mm256_cvtepu16_epi32(load128(tile.d[half] + i));
      _mm256_store_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(d, 16)));
    }
  } else if constexpr (L == Layout::iq4_xs) {
    const __m128i scales = load128(tile.d[1] + 8 * half);
    _mm256_store_ps(
        to, _mm256_mul_ps(load_half8(tile.d[0]), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales))));
    _mm256_store_ps(
        to + 8, _mm256_mul_ps(load_half8(tile.d[0] + 8),
                              _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(scales, 8)))));
  } else {
    store_halves(to, tile.d[half]);
    if constexpr (L == Layout::nvfp4) store_halves(panel->factor[sub][1], tile.second[half]);
    if constexpr (L == Layout::q4_1) store_halves(panel->min[sub], tile.second[half]);
  }
}

template <Layout L>
BRAID_INLINE void unpack_small(const Job& job, const std::byte* tiles, int64_t first, int subs,
                               Panel* panel) {
  const auto* tile = reinterpret_cast<const SmallTile<L>*>(tiles) + first / kTileSubs<L>;
  for (int sub = 0; sub < subs; sub++) {
    if constexpr (is_five(L)) {
      prefetch_lines(ahead_of(job, tile + sub), static_cast<int>(sizeof(W5) / 64));
      for (int half = 0; half < 2; half++) {
        __m256i code[8];
        five_bit_codes(tile[sub].q, half, code);
        for (int quad = 0; quad < 8; quad++) store256(panel->q[sub][quad][half], code[quad]);
      }
      store_halves(panel->factor[sub][0], tile[sub].d);
      store_halves(panel->min[sub], tile[sub].min);
    } else {
      const SmallTile<L>& t = tile[sub / 2];
      unpack_factors<L>(t, sub & 1, sub, panel);
      if ((sub & 1) != 0) continue;
      prefetch_lines(ahead_of(job, &t), static_cast<int>(sizeof(t) / 64));
      // Both halves of a byte; the second is not used if it is beyond k.
      const __m256i low = _mm256_set1_epi8(15);
      for (int quad = 0; quad < 8; quad++) {
        for (int half = 0; half < 2; half++) {
          const __m256i x = load256(t.q[quad] + 32 * half);
          store256(panel->q[sub][quad][half], bytes_of<L>(_mm256_and_si256(x, low)));
          store256(panel->q[sub + 1][quad][half],
                   bytes_of<L>(_mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
        }
      }
    }
  }
}

template <typename Tile>
void unpack_k(const Tile& tile, Panel* panel) {
  constexpr bool six = sizeof(Tile) == sizeof(W6K);
  for (int half = 0; half < 2; half++) {
    for (int sub = 0; sub < kSubBlocks; sub++) {
      __m256i code[8];
      if constexpr (six) {
        group_codes(tile, 2 * sub, half, code);
        group_codes(tile, 2 * sub + 1, half, code + 4);
        const Scales6 scale = scales_6(tile, sub, half);
        for (int i = 0; i < 2; i++) {
          _mm256_store_ps(panel->factor[sub][i] + 8 * half,
                          _mm256_cvtepi32_ps(_mm256_srai_epi32(scale.of[i], 16)));
        }
      } else {
        group_codes(tile, sub, half, code);
        _mm256_store_ps(panel->factor[sub][0] + 8 * half, bytes_to_float(tile.scale[sub], half));
        _mm256_store_ps(panel->min[sub] + 8 * half, bytes_to_float(tile.min[sub], half));
      }
      for (int quad = 0; quad < 8; quad++) store256(panel->q[sub][quad][half], code[quad]);
    }
  }
  store_halves(panel->d, tile.d);
  if constexpr (!six) store_halves(panel->dmin, tile.dmin);
}

template <Layout L>
BRAID_INLINE void unpack(const Job& job, const std::byte* tiles, int64_t first, int subs,
                         Panel* panel) {
  if constexpr (L == Layout::w4k) {
    unpack_k(reinterpret_cast<const W4K*>(tiles)[first / kSubBlocks], panel);
  } else if constexpr (L == Layout::w5k) {
    unpack_k(reinterpret_cast<const W5K*>(tiles)[first / kSubBlocks], panel);
  } else if constexpr (L == Layout::w6k) {
    unpack_k(reinterpret_cast<const W6K*>(tiles)[first / kSubBlocks], panel);
  } else {
    unpack_small<L>(job, tiles, first, subs, panel);
  }
}

void widen(int offset, int subs, Panel* panel) {
  const __m256i low = _mm256_set1_epi16(255),
                zero = _mm256_set1_epi16(static_cast<int16_t>(offset));
  for (int sub = 0; sub < subs; sub++) {
    for (int quad = 0; quad < 8; quad++) {
      for (int half = 0; half < 2; half++) {
        const __m256i x = load256(panel->q[sub][quad][half]);
        store256(panel->w[sub][2 * quad][half], _mm256_sub_epi16(_mm256_and_si256(x, low), zero));
        store256(panel->w[sub][2 * quad + 1][half],
                 _mm256_sub_epi16(_mm256_srli_epi16(x, 8), zero));
      }
    }
  }
}

struct Rows {
  const ActHead* head[4];
  const ActCodes* codes[4];
  const ActNibbles* nibbles[4];
  const ActWide* wide[4];
};

BRAID_INLINE void add_pair(__m256i& s0, __m256i& s1, __m256i w0, __m256i w1, const int16_t* pair) {
  __m256i x, t;
  asm("vpbroadcastd %[a], %[x]\n\t"
      "vpmaddwd %[x], %[w0], %[t]\n\t"
      "vpmaddwd %[x], %[w1], %[x]\n\t"
      "vpaddd %[t], %[s0], %[s0]\n\t"
      "vpaddd %[x], %[s1], %[s1]"
      : [s0] "+x"(s0), [s1] "+x"(s1), [x] "=&x"(x), [t] "=&x"(t)
      : [w0] "x"(w0), [w1] "x"(w1), [a] "m"(*reinterpret_cast<const int32_t*>(pair)));
}

// s[m] = sums of 32 k (or of 16 k: part 0 or 1), without offsets.
template <Layout L, int M>
BRAID_INLINE void byte_sums(const Panel& panel, int sub, int part, const Rows& rows,
                            __m256i (*s)[2]) {
  constexpr int parts = by_16(L) ? 2 : 1, quads = 8 / parts;
  constexpr int chunk = is_five(L) || is_fp4(L) ? 4 : 8;  // quads whose sums fit 16 bits
  const __m256i one = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int c = 0; c < quads; c += chunk) {
    __m256i t[M][2];
#pragma GCC unroll 8
    for (int i = 0; i < chunk; i++) {
      const int quad = part * quads + c + i;
      const __m256i w0 = load256(panel.q[sub][quad][0]), w1 = load256(panel.q[sub][quad][1]);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const int8_t* x = rows.codes[m]->q + 32 * sub + 4 * quad;
        if (i == 0) {
          set_quad(t[m][0], t[m][1], w0, w1, x);
        } else {
          add_quad(t[m][0], t[m][1], w0, w1, x);
        }
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        const __m256i sum = _mm256_madd_epi16(t[m][half], one);
        s[m][half] = c == 0 ? sum : _mm256_add_epi32(s[m][half], sum);
      }
    }
  }
  if constexpr (offset_of(L) != 0) {
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const ActHead& head = *rows.head[m];
      const int32_t sum = parts == 2 ? int32_t{head.sum16[2 * sub + part]} : head.sum[sub];
      const __m256i offset = _mm256_set1_epi32(offset_of(L) * sum);
      s[m][0] = _mm256_sub_epi32(s[m][0], offset);
      s[m][1] = _mm256_sub_epi32(s[m][1], offset);
    }
  }
}

template <Layout L, int M>
BRAID_INLINE void word_sums(const Panel& panel, int sub, int part, const Rows& rows,
                            __m256i (*s)[2]) {
  constexpr int pairs = by_16(L) ? 8 : 16;
#pragma GCC unroll 16
  for (int i = 0; i < pairs; i++) {
    const int p = part * pairs + i;
    const __m256i w0 = load256(panel.w[sub][p][0]), w1 = load256(panel.w[sub][p][1]);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const int16_t* x = rows.wide[m]->q + 32 * sub + 2 * p;
      if (i == 0) {
        set_pair(s[m][0], s[m][1], w0, w1, x);
      } else {
        add_pair(s[m][0], s[m][1], w0, w1, x);
      }
    }
  }
}

template <Layout L, int M>
BRAID_INLINE void plane_sums(const Panel& panel, int sub, const Rows& rows, __m256i (*s)[2]) {
  static_assert(!by_16(L));
  __m256i high[M][2], low[M][2];
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) {
    const __m256i w0 = load256(panel.q[sub][quad][0]), w1 = load256(panel.q[sub][quad][1]);
#pragma GCC unroll 2
    for (int m = 0; m < M; m++) {
      const int at = 32 * sub + 4 * quad;
      if (quad == 0) {
        set_quad(high[m][0], high[m][1], w0, w1, rows.nibbles[m]->high + at);
        set_quad(low[m][0], low[m][1], w0, w1, rows.nibbles[m]->low + at);
      } else {
        add_quad(high[m][0], high[m][1], w0, w1, rows.nibbles[m]->high + at);
        add_quad(low[m][0], low[m][1], w0, w1, rows.nibbles[m]->low + at);
      }
    }
  }
  const __m256i sixteen = _mm256_set1_epi16(16), one = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int m = 0; m < M; m++) {
    const __m256i offset = _mm256_set1_epi32(offset_of(L) * rows.head[m]->sum[sub]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(high[m][half], sixteen),
                                           _mm256_madd_epi16(low[m][half], one));
      s[m][half] = _mm256_sub_epi32(sum, offset);
    }
  }
}

template <Layout L, Form kForm, int M>
BRAID_INLINE void sums(const Panel& panel, int sub, int part, const Rows& rows, __m256i (*s)[2]) {
  if constexpr (kForm == Form::words) {
    word_sums<L, M>(panel, sub, part, rows, s);
  } else if constexpr (kForm == Form::planes) {
    plane_sums<L, M>(panel, sub, rows, s);
  } else {
    byte_sums<L, M>(panel, sub, part, rows, s);
  }
}

template <int M>
BRAID_INLINE void add_mins(const Panel& panel, int subs, const Rows& rows, __m256 (*acc)[2]) {
  for (int sub = 0; sub < subs; sub++) {
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const __m256 dsum = _mm256_broadcast_ss(rows.head[m]->dsum + sub);
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        acc[m][half] =
            _mm256_fmadd_ps(_mm256_load_ps(panel.min[sub] + 8 * half), dsum, acc[m][half]);
      }
    }
  }
}

template <Layout L, Form kForm, int M>
BRAID_INLINE void add_small(const Panel& panel, int subs, const Rows& rows, __m256 (*acc)[2]) {
#pragma GCC unroll 1
  for (int sub = 0; sub < subs; sub++) {
#pragma GCC unroll 2
    for (int part = 0; part < (by_16(L) ? 2 : 1); part++) {
      __m256i s[M][2];
      sums<L, kForm, M>(panel, sub, part, rows, s);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const __m256 d = _mm256_broadcast_ss(rows.head[m]->d + sub);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
          acc[m][half] =
              _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(s[m][half]), d),
                              _mm256_load_ps(panel.factor[sub][part] + 8 * half), acc[m][half]);
        }
      }
    }
  }
  if constexpr (has_min(L)) add_mins<M>(panel, subs, rows, acc);
}

template <Layout L, Form kForm, int M>
BRAID_INLINE void add_k(const Panel& panel, const Rows& rows, __m256 (*acc)[2]) {
  __m256 f[M][2];
  for (int m = 0; m < M; m++) f[m][0] = f[m][1] = _mm256_setzero_ps();
#pragma GCC unroll 1
  for (int sub = 0; sub < kSubBlocks; sub++) {
    __m256 scaled[M][2];
#pragma GCC unroll 2
    for (int part = 0; part < (by_16(L) ? 2 : 1); part++) {
      __m256i s[M][2];
      sums<L, kForm, M>(panel, sub, part, rows, s);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
          const __m256 sum = _mm256_cvtepi32_ps(s[m][half]);
          const __m256 scale = _mm256_load_ps(panel.factor[sub][part] + 8 * half);
          scaled[m][half] =
              part == 0 ? _mm256_mul_ps(sum, scale) : _mm256_fmadd_ps(sum, scale, scaled[m][half]);
        }
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const __m256 d = _mm256_broadcast_ss(rows.head[m]->d + sub);
      f[m][0] = _mm256_fmadd_ps(scaled[m][0], d, f[m][0]);
      f[m][1] = _mm256_fmadd_ps(scaled[m][1], d, f[m][1]);
    }
  }
  __m256 mins[M][2];
  for (int m = 0; m < M; m++) mins[m][0] = mins[m][1] = _mm256_setzero_ps();
  if constexpr (!by_16(L)) add_mins<M>(panel, kSubBlocks, rows, mins);
  for (int m = 0; m < M; m++) {
    for (int half = 0; half < 2; half++) {
      acc[m][half] = _mm256_fmadd_ps(_mm256_load_ps(panel.d + 8 * half), f[m][half], acc[m][half]);
      if constexpr (!by_16(L)) {
        acc[m][half] =
            _mm256_fnmadd_ps(_mm256_load_ps(panel.dmin + 8 * half), mins[m][half], acc[m][half]);
      }
    }
  }
}

template <Layout L, Form kForm, int M>
void block_rows(const Panel& panel, const Job& job, int64_t block, int subs, int64_t m0,
                float* out) {
  Rows rows;
  __m256 acc[M][2];
  for (int m = 0; m < M; m++) {
    const int64_t at = block * job.act.rows + job_row(job, m0 + m);
    rows.head[m] = job.act.head + at;
    if constexpr (kForm == Form::words) {
      rows.wide[m] = job.act.wide + at;
    } else if constexpr (kForm == Form::planes) {
      rows.nibbles[m] = job.act.nibbles + at;
    } else {
      rows.codes[m] = job.act.codes + at;
    }
    const float* before = out + m * job.out_stride;
    acc[m][0] = block == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(before);
    acc[m][1] = block == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(before + 8);
  }
  if constexpr (is_k(L)) {
    add_k<L, kForm, M>(panel, rows, acc);
  } else {
    add_small<L, kForm, M>(panel, subs, rows, acc);
  }
  for (int m = 0; m < M; m++) {
    _mm256_storeu_ps(out + m * job.out_stride, acc[m][0]);
    _mm256_storeu_ps(out + m * job.out_stride + 8, acc[m][1]);
  }
}

template <Layout L, Form kForm>
void multiply(const Job& job) {
  auto* panel = reinterpret_cast<Panel*>(job.scratch);
  const int64_t subs_all = (job.k + 31) / 32;
  for (int64_t g = 0; g < job.groups; g++) {
    const std::byte* tiles = job.tiles + static_cast<size_t>(g) * job.group_bytes;
    for (int64_t first = 0; first < subs_all; first += kSubBlocks) {
      const int subs =
          static_cast<int>(subs_all - first < kSubBlocks ? subs_all - first : kSubBlocks);
      const int64_t block = first / kSubBlocks;
      unpack<L>(job, tiles, first, subs, panel);
      if constexpr (kForm == Form::words) widen(offset_of(L), subs, panel);
      float* out = job.out + 16 * g;
      int64_t m = 0;
      for (; kForm != Form::planes && m + 4 <= job.rows; m += 4) {
        block_rows<L, kForm, 4>(*panel, job, block, subs, m, out + m * job.out_stride);
      }
      for (; m + 2 <= job.rows; m += 2) {
        block_rows<L, kForm, 2>(*panel, job, block, subs, m, out + m * job.out_stride);
      }
      if (m < job.rows)
        block_rows<L, kForm, 1>(*panel, job, block, subs, m, out + m * job.out_stride);
    }
  }
}

}  // namespace

template <Layout L>
void small_rows(const Job& job) {
  multiply<L, is_iq4(L) ? Form::planes : Form::bytes>(job);
}
template <Layout L>
void wide_rows(const Job& job) {
  multiply<L, Form::words>(job);
}

template <Layout L>
void decode_small(const std::byte* tiles, int64_t k, int64_t block, float* values) {
  Panel panel;
  const int64_t left = k / 32 - block * kSubBlocks;
  const int subs = static_cast<int>(left < kSubBlocks ? left : kSubBlocks);
  unpack_small<L>(Job(), tiles, block * kSubBlocks, subs, &panel);
  const __m256i offset = _mm256_set1_epi32(small_offset(L)), byte = _mm256_set1_epi32(255);
  for (int sub = 0; sub < subs; sub++) {
    for (int quad = 0; quad < 8; quad++) {
      const int part = by_16(L) ? quad / 4 : 0;
      for (int half = 0; half < 2; half++) {
        __m256i codes = load256(panel.q[sub][quad][half]);
        const __m256 factor = _mm256_load_ps(panel.factor[sub][part] + 8 * half);
        float* to = values + (32 * sub + 4 * quad) * 16 + 8 * half;
        for (int j = 0; j < 4; j++, codes = _mm256_srli_epi32(codes, 8)) {
          const __m256i integer = _mm256_sub_epi32(_mm256_and_si256(codes, byte), offset);
          __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(integer), factor);
          if constexpr (has_min(L)) {
            value = _mm256_add_ps(value, _mm256_load_ps(panel.min[sub] + 8 * half));
          }
          _mm256_store_ps(to + 16 * j, value);
        }
      }
    }
  }
}

#define BRAID_KERNELS(l)                           \
  template void small_rows<Layout::l>(const Job&); \
  template void wide_rows<Layout::l>(const Job&);  \
  template void decode_small<Layout::l>(const std::byte*, int64_t, int64_t, float*);
BRAID_SMALL_LAYOUTS(BRAID_KERNELS)
template void wide_rows<Layout::w4k>(const Job&);
template void wide_rows<Layout::w5k>(const Job&);
template void wide_rows<Layout::w6k>(const Job&);

}  // namespace braid::cpu::avx2

#endif
