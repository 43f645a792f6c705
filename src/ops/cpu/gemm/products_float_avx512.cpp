// products_float_avx512.cpp -- float and decoded weights times f32 activations, on AVX-512.
// f32, f16 and bf16 are converted at use; the sums of up to 8 activation rows, or of 4 row groups
// of one row, stay in registers over the whole k. Other layouts are decoded to f32, 256 k at a
// time, by the AVX2 decoder. One FMA per product, k ascending.

#if defined(__x86_64__)

#include "ops/cpu/gemm/kernels_avx2.h"
#include "ops/cpu/gemm/products_avx512.h"

namespace braid::cpu::avx512 {
namespace {

constexpr int kTile = 8;
using Prefetch = Ahead<kIntoL1, 4096>;

// The second is not read when `one`.
template <Layout L>
BRAID_INLINE void load_two(const std::byte* tiles, int64_t i, bool one, __m512* w) {
  if constexpr (L == Layout::f32) {
    const auto* q = reinterpret_cast<const float*>(tiles) + 16 * i;
    w[0] = _mm512_load_ps(q);
    w[1] = one ? w[0] : _mm512_load_ps(q + 16);
    Prefetch::lines(q, 2);
  } else if constexpr (L == Layout::f16) {
    const auto* q = reinterpret_cast<const uint16_t*>(tiles) + 16 * i;
    w[0] = load_half16(q);
    w[1] = one ? w[0] : load_half16(q + 16);
    Prefetch::line(q);
  } else {
    const auto* q = reinterpret_cast<const uint16_t*>(tiles) + 16 * i;  // pairs of k, so i is even
    const __m512i pair = load512(q);
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    w[1] = _mm512_castsi512_ps(
        _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    Prefetch::line(q);
  }
}

template <Layout L, int G, int M>
BRAID_INLINE void add_rows(const std::byte* tiles, size_t group_bytes, int64_t count,
                           const float* const* x_in, __m512 (*acc)[M]) {
  const float* x[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) x[m] = x_in[m];
  const auto step = [&](int64_t i, bool one) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      __m512 w[2];
      load_two<L>(tiles + static_cast<size_t>(g) * group_bytes, i, one, w);
#pragma GCC unroll 2
      for (int e = 0; e < 2; e++) {
        if (e == 1 && one) break;
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
          acc[g][m] = _mm512_fmadd_ps(w[e], _mm512_set1_ps(x[m][i + e]), acc[g][m]);
      }
    }
  };
  int64_t i = 0;
#pragma GCC unroll 1
  for (; i + 2 <= count; i += 2) step(i, false);
  if (i < count) step(i, true);
}

template <Layout L, int G, int M>
__attribute__((noinline)) void whole_k(const Job& job, int64_t g0, int64_t m0) {
  const float* x[M];
  __m512 acc[G][M];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    x[m] = job.act.x + job_row(job, m0 + m) * job.act.x_stride;
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) acc[g][m] = _mm512_setzero_ps();
  }
  add_rows<L, G, M>(job.tiles + static_cast<size_t>(g0) * job.group_bytes, job.group_bytes, job.k,
                    x, acc);
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      _mm512_storeu_ps(job.out + (m0 + m) * job.out_stride + 16 * (g0 + g), acc[g][m]);
    }
  }
}

template <Layout L>
void rest_of_group(const Job& job, int64_t g, int64_t m) {
  if (m + 4 <= job.rows) {
    whole_k<L, 1, 4>(job, g, m);
    m += 4;
  }
  switch (job.rows - m) {
    case 3:
      return whole_k<L, 1, 3>(job, g, m);
    case 2:
      return whole_k<L, 1, 2>(job, g, m);
    case 1:
      return whole_k<L, 1, 1>(job, g, m);
    default:
      return;
  }
}

template <Layout L>
void float_rows(const Job& job) {
  int64_t g = 0;
  // Several row groups at once: one chain of FMAs would wait for itself.
  if (job.rows == 1) {
    for (; g + 4 <= job.groups; g += 4) whole_k<L, 4, 1>(job, g, 0);
  } else if (job.rows == 2) {
    for (; g + 2 <= job.groups; g += 2) whole_k<L, 2, 2>(job, g, 0);
  }
  for (; g < job.groups; g++) {
    int64_t m = 0;
    for (; m + kTile <= job.rows; m += kTile) whole_k<L, 1, kTile>(job, g, m);
    rest_of_group<L>(job, g, m);
  }
}

template <int M>
__attribute__((noinline)) void panel_rows(const Job& job, int64_t begin, int64_t count, int64_t m0,
                                          float* out) {
  const float* x[M];
  __m512 acc[1][M];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) {
    x[m] = job.act.x + job_row(job, m0 + m) * job.act.x_stride + begin;
    acc[0][m] = begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + m * job.out_stride);
  }
  add_rows<Layout::f32, 1, M>(job.scratch, 0, count, x, acc);
#pragma GCC unroll 8
  for (int m = 0; m < M; m++) _mm512_storeu_ps(out + m * job.out_stride, acc[0][m]);
}

}  // namespace

void f32_rows(const Job& job) { float_rows<Layout::f32>(job); }
void f16_rows(const Job& job) { float_rows<Layout::f16>(job); }
void bf16_rows(const Job& job) { float_rows<Layout::bf16>(job); }

template <Layout L>
void decoded_rows(const Job& job) {
  for (int64_t g = 0; g < job.groups; g++) {
    const std::byte* tiles = job.tiles + static_cast<size_t>(g) * job.group_bytes;
    for (int64_t begin = 0; begin < job.k; begin += kBlockK) {
      const int64_t count = job.k - begin < kBlockK ? job.k - begin : kBlockK;
      avx2::decode(L, job.raw_type, tiles, job.k, begin / kBlockK,
                   reinterpret_cast<float*>(job.scratch));
      for (int64_t m = 0; m < job.rows; m += kTile) {
        float* out = job.out + m * job.out_stride + 16 * g;
        switch (job.rows - m) {
          case 1:
            panel_rows<1>(job, begin, count, m, out);
            break;
          case 2:
            panel_rows<2>(job, begin, count, m, out);
            break;
          case 3:
            panel_rows<3>(job, begin, count, m, out);
            break;
          case 4:
            panel_rows<4>(job, begin, count, m, out);
            break;
          case 5:
            panel_rows<5>(job, begin, count, m, out);
            break;
          case 6:
            panel_rows<6>(job, begin, count, m, out);
            break;
          case 7:
            panel_rows<7>(job, begin, count, m, out);
            break;
          default:
            panel_rows<8>(job, begin, count, m, out);
            break;
        }
      }
    }
  }
}
template void decoded_rows<Layout::w8>(const Job&);
template void decoded_rows<Layout::w4k>(const Job&);
template void decoded_rows<Layout::w5k>(const Job&);
template void decoded_rows<Layout::w6k>(const Job&);
template void decoded_rows<Layout::raw>(const Job&);
#define BRAID_DECODED(l) template void decoded_rows<Layout::l>(const Job&);
BRAID_SMALL_LAYOUTS(BRAID_DECODED)

}  // namespace braid::cpu::avx512

#endif
