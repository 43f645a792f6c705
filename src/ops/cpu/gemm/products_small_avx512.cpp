// products_small_avx512.cpp -- small types; all quantized types but Q8_0 with int16 activations.
// 256 k of a row group are unpacked to bytes (integer + offset; 4 KB, stays in L1) for any number
// of rows; tables are vpshufb. vpdpbusd takes the bytes unchanged: sums start at -offset x (sum of
// activation codes). int16 activations are two int8 planes, as in Q8_0.

#if defined(__x86_64__)

#include "ops/cpu/gemm/codes_avx512.h"

namespace braid::cpu::avx512 {
namespace {

struct alignas(64) Panel {
  uint8_t q[kSubBlocks][8][64];
  __m512 factor[kSubBlocks][2];  // of the first and second 16 k; of 32 k: only the first
  __m512 min[kSubBlocks];
  __m512 d, dmin;  // K-quants
};
static_assert(sizeof(Panel) <= kRowsAt);

constexpr bool is_k(Layout l) { return l == Layout::w4k || l == Layout::w5k || l == Layout::w6k; }
constexpr bool by_16(Layout l) { return l == Layout::nvfp4 || l == Layout::w6k; }
constexpr int offset_of(Layout l) { return l == Layout::w6k ? 32 : is_k(l) ? 0 : small_offset(l); }

using Near = Ahead<kIntoL1, 4608>;

template <Layout L>
BRAID_INLINE __m512i bytes_of(__m512i nibbles) {
  if constexpr (is_iq4(L) || is_fp4(L)) {
    const uint8_t* bytes = is_iq4(L) ? kIq4Bytes : kFp4Bytes;
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
  } else {
    return nibbles;
  }
}

template <Layout L, typename Tile>
BRAID_INLINE void unpack_factors(const Tile& tile, int half, int sub, Panel* panel) {
  if constexpr (L == Layout::mxfp4) {
    const __m256i d = _mm256_load_si256(reinterpret_cast<const __m256i*>(tile.d[half]));
    panel->factor[sub][0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(d), 16));
  } else if constexpr (L == Layout::iq4_xs) {
    const __m128i scales = _mm_load_si128(reinterpret_cast<const __m128i*>(tile.d[1] + 8 * half));
    panel->factor[sub][0] =
        _mm512_mul_ps(load_half16(tile.d[0]), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)));
  } else {
    panel->factor[sub][0] = load_half16(tile.d[half]);
    if constexpr (L == Layout::nvfp4) panel->factor[sub][1] = load_half16(tile.second[half]);
    if constexpr (L == Layout::q4_1) panel->min[sub] = load_half16(tile.second[half]);
  }
}

template <Layout L>
BRAID_INLINE void unpack_small(const std::byte* tiles, int64_t first, int subs, Panel* panel) {
  const auto* tile = reinterpret_cast<const SmallTile<L>*>(tiles) + first / kTileSubs<L>;
  for (int sub = 0; sub < subs; sub++) {
    if constexpr (is_five(L)) {
      Near::line(tile + sub);
      __m512i code[8];
      five_bit_codes(tile[sub].q, code);
#pragma GCC unroll 8
      for (int quad = 0; quad < 8; quad++) store512(panel->q[sub][quad], code[quad]);
      panel->factor[sub][0] = load_half16(tile[sub].d);
      panel->min[sub] = load_half16(tile[sub].min);
    } else {
      const SmallTile<L>& t = tile[sub / 2];
      unpack_factors<L>(t, sub & 1, sub, panel);
      if ((sub & 1) != 0) continue;
      Near::lines(&t, static_cast<int>(sizeof(t) / 64));
      // Both halves of a byte; the second is not used if it is beyond k.
      for (int quad = 0; quad < 8; quad++) {
        const __m512i x = load512(t.q[quad]);
        store512(panel->q[sub][quad], bytes_of<L>(_mm512_and_si512(x, bits(15))));
        store512(panel->q[sub + 1][quad], bytes_of<L>(shifted(x, 4, 15)));
      }
    }
  }
}

template <typename Tile>
BRAID_INLINE void unpack_k(const Tile& tile, Panel* panel) {
  constexpr bool six = sizeof(Tile) == sizeof(W6K);
  Prefetch<Tile>::lines(&tile, 5);
#pragma GCC unroll 1
  for (int sub = 0; sub < kSubBlocks; sub++) {
    __m512i code[8];
    if ((sub & 1) != 0) {
      codes_of(tile, sub, true, code);
    } else {
      codes_of(tile, sub, false, code);
    }
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; quad++) store512(panel->q[sub][quad], code[quad]);
    if constexpr (six) {
      const Scales6 scale = scales_6(tile, sub);
      panel->factor[sub][0] = scale.first;
      panel->factor[sub][1] = scale.second;
    } else {
      panel->factor[sub][0] = load_bytes16(tile.scale[sub]);
      panel->min[sub] = load_bytes16(tile.min[sub]);
    }
  }
  panel->d = load_half16(tile.d);
  if constexpr (!six) panel->dmin = load_half16(tile.dmin);
}

template <Layout L>
__attribute__((noinline)) void unpack(const std::byte* tiles, int64_t first, int subs,
                                      Panel* panel) {
  if constexpr (L == Layout::w4k) {
    unpack_k(reinterpret_cast<const W4K*>(tiles)[first / kSubBlocks], panel);
  } else if constexpr (L == Layout::w5k) {
    unpack_k(reinterpret_cast<const W5K*>(tiles)[first / kSubBlocks], panel);
  } else if constexpr (L == Layout::w6k) {
    unpack_k(reinterpret_cast<const W6K*>(tiles)[first / kSubBlocks], panel);
  } else {
    unpack_small<L>(tiles, first, subs, panel);
  }
}

// -offset x (sum of codes) of 32 k, or of its 16 k `part`.
template <Layout L, typename Codes>
BRAID_INLINE __m512i start_of(const SubBlock<Codes>& x, int m, int part) {
  if constexpr (offset_of(L) == 0) return _mm512_setzero_si512();
  if constexpr (by_16(L)) return _mm512_set1_epi32(x.start6(m, part) / 32 * offset_of(L));
  return _mm512_set1_epi32(x.sum(m) / 128 * offset_of(L));
}

// s[j] = sums of 32 k (or of 16 k: part 0 or 1) of activation rows m + j.
template <Layout L, int count, typename Codes>
BRAID_INLINE void sums_of(const uint8_t (*q)[64], const SubBlock<Codes>& x, int m, int part,
                          __m512i* s) {
  constexpr int planes = sizeof(Codes) / kBlockK, quads = by_16(L) ? 4 : 8;
#pragma GCC unroll 2
  for (int plane = 0; plane < planes; plane++) {
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) {
      if (plane == planes - 1) {
        const __m512i start = start_of<L>(x, m + j, part);
        s[j] = planes == 1 ? start : _mm512_add_epi32(_mm512_slli_epi32(s[j], 8), start);
      } else {
        s[j] = _mm512_setzero_si512();
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < quads; i++) {
      const __m512i w = load512(q[part * quads + i]);
#pragma GCC unroll 4
      for (int j = 0; j < count; j++) dot_quad(s[j], w, x.quad(m + j, part * quads + i, plane));
    }
  }
}

template <Layout L, typename Codes>
struct BlockTile {
  const Job& job;
  const Codes* codes;
  const Panel& panel;
  int64_t group, block;
  int subs;

  template <int M>
  __attribute__((noinline)) void run(int64_t m0) const {
    const RowBlock<Codes> rows = rows_at(job, codes, block, m0, M);
    float* out = job.out + m0 * job.out_stride + 16 * group;
    __m512 f[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      f[m] =
          is_k(L) || block == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + m * job.out_stride);
    }
#pragma GCC unroll 1
    for (int sub = 0; sub < subs; sub++) add_sub<M>(sub, SubBlock<Codes>(rows, sub), f);
#pragma GCC unroll 1
    for (int m = 0; m < M; m++) {
      float* o = out + m * job.out_stride;
      __m512 acc = f[m];
      if constexpr (is_k(L)) {
        acc = _mm512_fmadd_ps(panel.d, f[m], block == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(o));
        if constexpr (!by_16(L)) {
          const __m512 mins = add_mins(rows.head[m], _mm512_setzero_ps());
          acc = _mm512_fnmadd_ps(panel.dmin, mins, acc);
        }
      } else if constexpr (has_min(L)) {
        acc = add_mins(rows.head[m], acc);
      }
      _mm512_storeu_ps(o, acc);
    }
  }

  BRAID_INLINE __m512 add_mins(const ActHead& head, __m512 sum) const {
    for (int sub = 0; sub < subs; sub++) {
      sum = _mm512_fmadd_ps(panel.min[sub], _mm512_set1_ps(head.dsum[sub]), sum);
    }
    return sum;
  }

  template <int M>
  BRAID_INLINE void add_sub(int sub, const SubBlock<Codes>& x, __m512* f) const {
    const uint8_t(*q)[64] = panel.q[sub];
#pragma GCC unroll 4
    for (int m = 0; m < M; m += 4) {
      constexpr int count = M < 4 ? M : 4;
      __m512 scaled[count];
#pragma GCC unroll 2
      for (int part = 0; part < (by_16(L) ? 2 : 1); part++) {
        __m512i s[count];
        sums_of<L, count>(q, x, m, part, s);
        const __m512 factor = panel.factor[sub][part];
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) {
          const __m512 sum = _mm512_cvtepi32_ps(s[j]);
          if constexpr (is_k(L)) {
            scaled[j] =
                part == 0 ? _mm512_mul_ps(sum, factor) : _mm512_fmadd_ps(sum, factor, scaled[j]);
          } else {
            f[m + j] =
                _mm512_fmadd_ps(_mm512_mul_ps(sum, _mm512_set1_ps(x.d(m + j))), factor, f[m + j]);
          }
        }
      }
      if constexpr (is_k(L)) {
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) {
          f[m + j] = _mm512_fmadd_ps(scaled[j], _mm512_set1_ps(x.d(m + j)), f[m + j]);
        }
      }
    }
  }
};

template <Layout L, typename Codes>
void multiply(const Job& job, const Codes* codes) {
  auto* panel = reinterpret_cast<Panel*>(job.scratch);
  const int64_t subs_all = (job.k + 31) / 32;
  for (int64_t g = 0; g < job.groups; g++) {
    const std::byte* tiles = job.tiles + static_cast<size_t>(g) * job.group_bytes;
    for (int64_t first = 0; first < subs_all; first += kSubBlocks) {
      const int subs =
          static_cast<int>(subs_all - first < kSubBlocks ? subs_all - first : kSubBlocks);
      unpack<L>(tiles, first, subs, panel);
      for_tiles(job.rows, BlockTile<L, Codes>{job, codes, *panel, g, first / kSubBlocks, subs});
    }
  }
}

}  // namespace

template <Layout L>
void small_rows(const Job& job) {
  multiply<L>(job, job.act.codes);
}
template <Layout L>
void wide_rows(const Job& job) {
  multiply<L>(job, job.act.nibbles);
}

#define BRAID_KERNELS(l)                           \
  template void small_rows<Layout::l>(const Job&); \
  template void wide_rows<Layout::l>(const Job&);
BRAID_SMALL_LAYOUTS(BRAID_KERNELS)
template void wide_rows<Layout::w4k>(const Job&);
template void wide_rows<Layout::w5k>(const Job&);
template void wide_rows<Layout::w6k>(const Job&);

}  // namespace braid::cpu::avx512

#endif
