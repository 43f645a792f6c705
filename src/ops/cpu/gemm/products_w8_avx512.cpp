// products_w8_avx512.cpp -- Q8_0 weights on AVX-512 VNNI, with int8 and int16 activations.
//
// Codes are stored as code + 128, so vpdpbusd takes them unchanged; a sum starts at -128 x (sum of
// activation codes). int16 activations are two int8 planes: the high plane is summed, shifted, and
// the low plane added, all exact in 32 bits (at most 2^28).
//
// Few rows: the whole k of a row group with the sums in registers, weights prefetched from memory.
// Many rows: 256 k of a row group, 16 rows at a time; weights stay in L1, activations stream.

#if defined(__x86_64__)

#include "ops/cpu/gemm/products_avx512.h"

namespace braid::cpu::avx512 {
namespace {

using Prefetch = Ahead<kIntoL1, 4608>;

// s[j] = sums of 32 k of 16 rows and activation row m + j, as independent chains.
template <int count, typename Codes>
BRAID_INLINE void sums_of(const __m512i* w, const SubBlock<Codes>& x, int m, __m512i* s) {
  constexpr int planes = sizeof(Codes) / kBlockK;
#pragma GCC unroll 2
  for (int plane = 0; plane < planes; plane++) {
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) {
      if (plane == planes - 1) {
        const __m512i start = _mm512_set1_epi32(x.sum(m + j));
        s[j] = planes == 1 ? start : _mm512_add_epi32(_mm512_slli_epi32(s[j], 8), start);
      } else {
        s[j] = _mm512_setzero_si512();
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
#pragma GCC unroll 4
      for (int j = 0; j < count; j++) dot_quad(s[j], w[i], x.quad(m + j, i, plane));
    }
  }
}

template <int M, typename Codes>
BRAID_INLINE void add_sub(const W8& tile, int half, const SubBlock<Codes>& x, __m512* acc) {
  const uint8_t* q = tile.q[8 * half];
  __m512i w[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    w[i] = load512(q + 64 * i);
    Prefetch::line(q + 64 * i);
  }
  const __m512 dw = load_half16(tile.d[half]);
#pragma GCC unroll 4
  for (int m = 0; m < M; m += 4) {
    constexpr int count = M < 4 ? M : 4;
    __m512i s[count];
    sums_of<count>(w, x, m, s);
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) {
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(s[j]), _mm512_set1_ps(x.d(m + j)));
      acc[m + j] = _mm512_fmadd_ps(scaled, dw, acc[m + j]);
    }
  }
}

template <int M, typename Codes>
BRAID_INLINE void add_block(const W8* tile, int64_t subs, const RowBlock<Codes>& rows,
                            __m512* acc) {
#pragma GCC unroll 1
  for (int64_t sub = 0; sub < subs; sub += 2, tile++) {
    Prefetch::line(tile);
    add_sub<M>(*tile, 0, SubBlock<Codes>(rows, sub), acc);
    if (sub + 1 < subs) add_sub<M>(*tile, 1, SubBlock<Codes>(rows, sub + 1), acc);
  }
}

BRAID_INLINE int64_t subs_at(const Job& job, int64_t block) {
  const int64_t left = (job.k + 31) / 32 - block * kSubBlocks;
  return left < kSubBlocks ? left : kSubBlocks;
}

template <int M, typename Codes>
void few_rows(const Job& job, const Codes* codes) {
  const int64_t blocks = (job.k + kBlockK - 1) / kBlockK;
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tile =
        reinterpret_cast<const W8*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    __m512 acc[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
      add_block<M>(tile + b * (kBlockK / 64), subs_at(job, b), rows_at(job, codes, b, 0, M), acc);
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) _mm512_storeu_ps(job.out + m * job.out_stride + 16 * g, acc[m]);
  }
}

template <typename Codes>
void few(const Job& job, const Codes* codes) {
  switch (job.rows) {
    case 1:
      return few_rows<1>(job, codes);
    case 2:
      return few_rows<2>(job, codes);
    case 3:
      return few_rows<3>(job, codes);
    case 4:
      return few_rows<4>(job, codes);
    default:
      return;
  }
}

template <typename Codes>
struct BlockTile {
  const Job& job;
  const Codes* codes;
  const W8* tile;
  int64_t group, block;

  template <int M>
  __attribute__((noinline)) void run(int64_t m0) const {
    float* out = job.out + m0 * job.out_stride + 16 * group;
    __m512 acc[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      acc[m] = block == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + m * job.out_stride);
    }
    add_block<M>(tile, subs_at(job, block), rows_at(job, codes, block, m0, M), acc);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) _mm512_storeu_ps(out + m * job.out_stride, acc[m]);
  }
};

template <typename Codes>
void many(const Job& job, const Codes* codes) {
  const int64_t blocks = (job.k + kBlockK - 1) / kBlockK;
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tile =
        reinterpret_cast<const W8*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    for (int64_t b = 0; b < blocks; b++) {
      for_tiles(job.rows, BlockTile<Codes>{job, codes, tile + b * (kBlockK / 64), g, b});
    }
  }
}

}  // namespace

void w8_few(const Job& job) { few(job, job.act.codes); }
void w8_many(const Job& job) { many(job, job.act.codes); }
void w8_wide_few(const Job& job) { few(job, job.act.nibbles); }
void w8_wide_many(const Job& job) { many(job, job.act.nibbles); }

}  // namespace braid::cpu::avx512

#endif
