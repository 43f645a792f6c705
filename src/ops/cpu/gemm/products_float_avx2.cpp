// products_float_avx2.cpp -- float and decoded weights times f32 activations.
// One FMA per product, k ascending. Many rows: 256 k of a row group are decoded to f32 once (16 KB)
// and multiplied by six rows at a time. Few rows: float weights are converted in registers. An FMA
// takes four cycles and two start in each, so eight sums run in parallel: four row groups of one
// row, two of two rows, one of three or four.

#if defined(__x86_64__)

#include "ops/cpu/gemm/products_avx2.h"

namespace braid::cpu::avx2 {
namespace {

constexpr int kTile = 6;

template <int M>
void panel_rows(const float* panel, int64_t count, const float* const* x, float* const* out) {
  __m256 acc[M][2];
#pragma GCC unroll 6
  for (int m = 0; m < M; m++) {
    acc[m][0] = _mm256_loadu_ps(out[m]);
    acc[m][1] = _mm256_loadu_ps(out[m] + 8);
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < count; i++) {
    const __m256 w0 = _mm256_load_ps(panel + 16 * i), w1 = _mm256_load_ps(panel + 16 * i + 8);
#pragma GCC unroll 6
    for (int m = 0; m < M; m++) {
      const __m256 v = _mm256_broadcast_ss(x[m] + i);
      acc[m][0] = _mm256_fmadd_ps(w0, v, acc[m][0]);
      acc[m][1] = _mm256_fmadd_ps(w1, v, acc[m][1]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < M; m++) {
    _mm256_storeu_ps(out[m], acc[m][0]);
    _mm256_storeu_ps(out[m] + 8, acc[m][1]);
  }
}

void decode_bf16(const std::byte* tiles, int64_t begin, int64_t count, float* panel) {
  const auto* q = reinterpret_cast<const uint8_t*>(tiles) + begin * 32;
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int64_t i = 0; i < count; i += 2, q += 64, panel += 32) {
    for (int rows = 0; rows < 2; rows++) {
      const __m256i w = load256(q + 32 * rows);
      _mm256_store_ps(panel + 8 * rows, _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)));
      _mm256_store_ps(panel + 16 + 8 * rows, _mm256_castsi256_ps(_mm256_and_si256(w, high)));
    }
  }
}

void decode_f16(const std::byte* tiles, int64_t begin, int64_t count, float* panel) {
  const auto* q = reinterpret_cast<const uint16_t*>(tiles) + begin * 16;
  for (int64_t i = 0; i < count * 16; i += 8) _mm256_store_ps(panel + i, load_half8(q + i));
}

template <Layout L>
struct Step;
template <>
struct Step<Layout::f32> {
  static constexpr int k = 1, bytes = 64;
  static BRAID_INLINE void load(const std::byte* p, __m256 (*w)[2]) {
    w[0][0] = _mm256_load_ps(reinterpret_cast<const float*>(p));
    w[0][1] = _mm256_load_ps(reinterpret_cast<const float*>(p) + 8);
  }
};
template <>
struct Step<Layout::f16> {
  static constexpr int k = 1, bytes = 32;
  static BRAID_INLINE void load(const std::byte* p, __m256 (*w)[2]) {
    w[0][0] = load_half8(reinterpret_cast<const uint16_t*>(p));
    w[0][1] = load_half8(reinterpret_cast<const uint16_t*>(p) + 8);
  }
};
template <>
struct Step<Layout::bf16> {
  static constexpr int k = 2, bytes = 64;
  static BRAID_INLINE void load(const std::byte* p, __m256 (*w)[2]) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const __m256i x = load256(p + 32 * half);
      w[0][half] = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
      w[1][half] = _mm256_castsi256_ps(_mm256_and_si256(x, high));
    }
  }
};

// A broadcast that the compiler does not share between row groups, which would spill a sum.
BRAID_INLINE __m256 broadcast_again(const float* p) {
  __m256 v;
  asm volatile("vbroadcastss %1, %0" : "=x"(v) : "m"(*p));
  return v;
}

template <Layout L, int G, int M>
void few_tile(const Job& job, const std::byte* tiles, int64_t m0, float* out) {
  using S = Step<L>;
  const float* x[M];
  for (int m = 0; m < M; m++) x[m] = job.act.x + job_row(job, m0 + m) * job.act.x_stride;
  __m256 acc[G][M][2];
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) {
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) acc[g][m][0] = acc[g][m][1] = _mm256_setzero_ps();
  }
  const auto steps = [&](int64_t begin, int count) {
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
      const std::byte* p =
          tiles + static_cast<size_t>(g) * job.group_bytes + begin / S::k * S::bytes;
      _mm_prefetch(ahead_of(job, p), _MM_HINT_T0);
      __m256 w[S::k][2];
      S::load(p, w);
#pragma GCC unroll 2
      for (int i = 0; i < S::k; i++) {
        if (i >= count) break;
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const __m256 v =
              M == 1 ? _mm256_broadcast_ss(x[m] + begin + i) : broadcast_again(x[m] + begin + i);
          acc[g][m][0] = _mm256_fmadd_ps(w[i][0], v, acc[g][m][0]);
          acc[g][m][1] = _mm256_fmadd_ps(w[i][1], v, acc[g][m][1]);
        }
      }
    }
  };
  int64_t begin = 0;
  for (; begin + S::k <= job.k; begin += S::k) steps(begin, S::k);
  if (begin < job.k) steps(begin, static_cast<int>(job.k - begin));
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) {
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      _mm256_storeu_ps(out + (m0 + m) * job.out_stride + 16 * g, acc[g][m][0]);
      _mm256_storeu_ps(out + (m0 + m) * job.out_stride + 16 * g + 8, acc[g][m][1]);
    }
  }
}

template <Layout L, int G, int M>
void few_groups(const Job& job, int64_t m) {
  const auto tiles = [&](int64_t g) {
    return job.tiles + static_cast<size_t>(g) * job.group_bytes;
  };
  int64_t g = 0;
  for (; g + G <= job.groups; g += G) few_tile<L, G, M>(job, tiles(g), m, job.out + 16 * g);
  for (; g < job.groups; g++) few_tile<L, 1, M>(job, tiles(g), m, job.out + 16 * g);
}

template <Layout L>
void few_rows(const Job& job) {
  for (int64_t m = 0; m < job.rows; m += 4) {
    switch (job.rows - m) {
      case 1:
        few_groups<L, 4, 1>(job, m);
        break;
      case 2:
        few_groups<L, 2, 2>(job, m);
        break;
      case 3:
        few_groups<L, 1, 3>(job, m);
        break;
      default:
        few_groups<L, 1, 4>(job, m);
        break;
    }
  }
}

template <Layout L>
void rows_of(const Job& job) {
  auto* panel = reinterpret_cast<float*>(job.scratch);
  for (int64_t g = 0; g < job.groups; g++) {
    const std::byte* tiles = job.tiles + static_cast<size_t>(g) * job.group_bytes;
    for (int64_t m = 0; m < job.rows; m++) {
      float* out = job.out + m * job.out_stride + 16 * g;
      _mm256_storeu_ps(out, _mm256_setzero_ps());
      _mm256_storeu_ps(out + 8, _mm256_setzero_ps());
    }
    for (int64_t begin = 0; begin < job.k; begin += kBlockK) {
      const int64_t count = job.k - begin < kBlockK ? job.k - begin : kBlockK;
      const float* weights = panel;
      if constexpr (L == Layout::f32) {
        weights = reinterpret_cast<const float*>(tiles) + begin * 16;
      } else if constexpr (L == Layout::f16) {
        decode_f16(tiles, begin, count, panel);
      } else if constexpr (L == Layout::bf16) {
        decode_bf16(tiles, begin, count, panel);
      } else {
        decode(L, job.raw_type, tiles, job.k, begin / kBlockK, panel);
      }
      for (int64_t m = 0; m < job.rows; m += kTile) {
        const int64_t left = job.rows - m;
        const float* x[kTile];
        float* out[kTile];
        for (int64_t i = 0; i < kTile && i < left; i++) {
          x[i] = job.act.x + job_row(job, m + i) * job.act.x_stride + begin;
          out[i] = job.out + (m + i) * job.out_stride + 16 * g;
        }
        switch (left) {
          case 1:
            panel_rows<1>(weights, count, x, out);
            break;
          case 2:
            panel_rows<2>(weights, count, x, out);
            break;
          case 3:
            panel_rows<3>(weights, count, x, out);
            break;
          case 4:
            panel_rows<4>(weights, count, x, out);
            break;
          case 5:
            panel_rows<5>(weights, count, x, out);
            break;
          default:
            panel_rows<6>(weights, count, x, out);
            break;
        }
      }
    }
  }
}

}  // namespace

void f32_rows(const Job& job) { rows_of<Layout::f32>(job); }
void f16_rows(const Job& job) { rows_of<Layout::f16>(job); }
void bf16_rows(const Job& job) { rows_of<Layout::bf16>(job); }
void f32_few(const Job& job) { few_rows<Layout::f32>(job); }
void f16_few(const Job& job) { few_rows<Layout::f16>(job); }
void bf16_few(const Job& job) { few_rows<Layout::bf16>(job); }
template <Layout L>
void decoded_rows(const Job& job) {
  rows_of<L>(job);
}
template void decoded_rows<Layout::w8>(const Job&);
template void decoded_rows<Layout::w4k>(const Job&);
template void decoded_rows<Layout::w5k>(const Job&);
template void decoded_rows<Layout::w6k>(const Job&);
template void decoded_rows<Layout::raw>(const Job&);
#define BRAID_DECODED(l) template void decoded_rows<Layout::l>(const Job&);
BRAID_SMALL_LAYOUTS(BRAID_DECODED)

}  // namespace braid::cpu::avx2

#endif
