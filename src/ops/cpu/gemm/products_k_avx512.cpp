// products_k_avx512.cpp -- Q4_K, Q5_K and Q6_K weights on AVX-512 VNNI, with int8 activations.
//
// Codes are unsigned; a sum of W6K starts at -32 x (sum of activation codes). Scaled sums are
// integers of at most 2 x 128 x 16 x 32 x 127 < 2^24, so float scales do not round.
//
// Few rows: the whole k of a row group with the sums in registers, weights prefetched from memory.
// Many rows: 256 k of a row group are unpacked to bytes once (4 KB, stays in L1), 16 rows at a
// time. Both make the same exact integers and the same float operations in the same order.

#if defined(__x86_64__)

#include "ops/cpu/gemm/codes_avx512.h"

namespace braid::cpu::avx512 {
namespace {

using Rows = RowBlock<ActCodes>;
using Sub = SubBlock<ActCodes>;

template <int M>
BRAID_INLINE void add_45(const __m512i* code, __m512 scale, const Sub& x, __m512* f) {
#pragma GCC unroll 4
  for (int m = 0; m < M; m += 4) {
    constexpr int count = M < 4 ? M : 4;
    __m512i s[count];
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) s[j] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
#pragma GCC unroll 4
      for (int j = 0; j < count; j++) dot_quad(s[j], code[i], x.quad(m + j, i));
    }
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) {
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(s[j]), scale);
      f[m + j] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x.d(m + j)), f[m + j]);
    }
  }
}

// Two rows at a time: with two sums each these are four chains.
template <int M>
BRAID_INLINE void add_6(const __m512i* code, const Scales6& scale, const Sub& x, __m512* f) {
#pragma GCC unroll 8
  for (int m = 0; m < M; m += 2) {
    const int count = M - m < 2 ? M - m : 2;
    __m512i s[2][2];
#pragma GCC unroll 2
    for (int j = 0; j < count; j++) {
      s[j][0] = _mm512_set1_epi32(x.start6(m + j, 0));
      s[j][1] = _mm512_set1_epi32(x.start6(m + j, 1));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#pragma GCC unroll 2
      for (int j = 0; j < count; j++) {
        dot_quad(s[j][0], code[i], x.quad(m + j, i));
        dot_quad(s[j][1], code[4 + i], x.quad(m + j, 4 + i));
      }
    }
#pragma GCC unroll 2
    for (int j = 0; j < count; j++) {
      const __m512 first = _mm512_mul_ps(_mm512_cvtepi32_ps(s[j][0]), scale.first);
      const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[j][1]), scale.second, first);
      f[m + j] = _mm512_fmadd_ps(sum, _mm512_set1_ps(x.d(m + j)), f[m + j]);
    }
  }
}

template <int M, typename Tile>
BRAID_INLINE void few_sub(const Tile& tile, int sub, bool odd, const Rows& rows, __m512* f,
                          __m512* mins) {
  const Sub x(rows, sub);
  __m512i code[8];
  codes_of(tile, sub, odd, code);
  if constexpr (sizeof(Tile) == sizeof(W6K)) {
    add_6<M>(code, scales_6(tile, sub), x, f);
  } else {
    add_45<M>(code, load_bytes16(tile.scale[sub]), x, f);
    const __m512 min = load_bytes16(tile.min[sub]);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) mins[m] = _mm512_fmadd_ps(min, _mm512_set1_ps(x.dsum(m)), mins[m]);
  }
}

template <int M, typename Tile>
void few_rows(const Job& job) {
  const int64_t blocks = job.k / kBlockK;
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tile =
        reinterpret_cast<const Tile*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    __m512 acc[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, tile++) {
      const Rows rows = rows_at(job, job.act.codes, b, 0, M);
      __m512 f[M], mins[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) f[m] = mins[m] = _mm512_setzero_ps();
      Prefetch<Tile>::lines(tile, 5);  // the lines before the codes
#pragma GCC unroll 1
      for (int sub = 0; sub < kSubBlocks; sub += 2) {
        few_sub<M>(*tile, sub, false, rows, f, mins);
        few_sub<M>(*tile, sub + 1, true, rows, f, mins);
      }
      const __m512 d = load_half16(tile->d);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) acc[m] = _mm512_fmadd_ps(d, f[m], acc[m]);
      if constexpr (sizeof(Tile) != sizeof(W6K)) {
        const __m512 dmin = load_half16(tile->dmin);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) acc[m] = _mm512_fnmadd_ps(dmin, mins[m], acc[m]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) _mm512_storeu_ps(job.out + m * job.out_stride + 16 * g, acc[m]);
  }
}

template <typename Tile>
void few(const Job& job) {
  switch (job.rows) {
    case 1:
      return few_rows<1, Tile>(job);
    case 2:
      return few_rows<2, Tile>(job);
    case 3:
      return few_rows<3, Tile>(job);
    case 4:
      return few_rows<4, Tile>(job);
    default:
      return;
  }
}

// Many rows: 256 k of a row group, unpacked.
struct alignas(64) Panel {
  uint8_t q[kSubBlocks][8][64];
  __m512 scale[kSubBlocks], min[kSubBlocks];  // W4K, W5K
  Scales6 scale6[kSubBlocks];
  __m512 d, dmin;
};
static_assert(sizeof(Panel) <= kRowsAt);

template <typename Tile>
BRAID_INLINE void unpack_sub(const Tile& tile, int sub, bool odd, Panel* panel) {
  __m512i code[8];
  codes_of(tile, sub, odd, code);
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) store512(panel->q[sub][quad], code[quad]);
  if constexpr (sizeof(Tile) == sizeof(W6K)) {
    panel->scale6[sub] = scales_6(tile, sub);
  } else {
    panel->scale[sub] = load_bytes16(tile.scale[sub]);
    panel->min[sub] = load_bytes16(tile.min[sub]);
  }
}

template <typename Tile>
__attribute__((noinline)) void unpack(const Tile& tile, Panel* panel) {
  Prefetch<Tile>::lines(&tile, 5);
#pragma GCC unroll 1
  for (int sub = 0; sub < kSubBlocks; sub += 2) {
    unpack_sub(tile, sub, false, panel);
    unpack_sub(tile, sub + 1, true, panel);
  }
  panel->d = load_half16(tile.d);
  if constexpr (sizeof(Tile) != sizeof(W6K)) panel->dmin = load_half16(tile.dmin);
}

template <int M, typename Tile>
BRAID_INLINE void panel_sub(const Panel& panel, int sub, const Sub& x, __m512* f) {
  __m512i code[8];
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) code[quad] = load512(panel.q[sub][quad]);
  if constexpr (sizeof(Tile) == sizeof(W6K)) {
    add_6<M>(code, panel.scale6[sub], x, f);
  } else {
    add_45<M>(code, panel.scale[sub], x, f);
  }
}

template <typename Tile>
struct BlockTile {
  const Job& job;
  const Panel& panel;
  int64_t group, block;

  template <int M>
  __attribute__((noinline)) void run(int64_t m0) const {
    const Rows rows = rows_at(job, job.act.codes, block, m0, M);
    __m512 f[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) f[m] = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int sub = 0; sub < kSubBlocks; sub++) panel_sub<M, Tile>(panel, sub, Sub(rows, sub), f);
    const bool first = block == 0;
    float* out = job.out + m0 * job.out_stride + 16 * group;
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      const __m512 acc = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + m * job.out_stride);
      _mm512_storeu_ps(out + m * job.out_stride, _mm512_fmadd_ps(panel.d, f[m], acc));
    }
    if constexpr (sizeof(Tile) != sizeof(W6K)) subtract_mins(rows, M, out);
  }

  // Four rows at a time, for four parallel chains of FMAs.
  BRAID_INLINE void subtract_mins(const Rows& rows, int count, float* out) const {
    __m512 min[kSubBlocks];
#pragma GCC unroll 8
    for (int sub = 0; sub < kSubBlocks; sub++) min[sub] = panel.min[sub];
    int m = 0;
    for (; m + 4 <= count; m += 4) subtract_rows<4>(min, rows.head + m, out + m * job.out_stride);
    for (; m < count; m++) subtract_rows<1>(min, rows.head + m, out + m * job.out_stride);
  }
  template <int count>
  BRAID_INLINE void subtract_rows(const __m512* min, const ActHead* head, float* out) const {
    __m512 mins[count];
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) mins[j] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int sub = 0; sub < kSubBlocks; sub++) {
#pragma GCC unroll 4
      for (int j = 0; j < count; j++) {
        mins[j] = _mm512_fmadd_ps(min[sub], _mm512_set1_ps(head[j].dsum[sub]), mins[j]);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) {
      float* o = out + j * job.out_stride;
      _mm512_storeu_ps(o, _mm512_fnmadd_ps(panel.dmin, mins[j], _mm512_loadu_ps(o)));
    }
  }
};

template <typename Tile>
void many(const Job& job) {
  auto* panel = reinterpret_cast<Panel*>(job.scratch);
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tiles =
        reinterpret_cast<const Tile*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    for (int64_t b = 0; b < job.k / kBlockK; b++) {
      unpack(tiles[b], panel);
      for_tiles(job.rows, BlockTile<Tile>{job, *panel, g, b});
    }
  }
}

}  // namespace

void w4k_few(const Job& job) { few<W4K>(job); }
void w5k_few(const Job& job) { few<W5K>(job); }
void w6k_few(const Job& job) { few<W6K>(job); }
void w4k_many(const Job& job) { many<W4K>(job); }
void w5k_many(const Job& job) { many<W5K>(job); }
void w6k_many(const Job& job) { many<W6K>(job); }

}  // namespace braid::cpu::avx512

#endif
