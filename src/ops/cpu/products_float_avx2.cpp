// products_float_avx2.cpp -- float weights, and quantized weights decoded to float, times f32 activations.
//
// 256 k of a row group are decoded to f32 once (16 KB) and multiplied by all rows, four to six at a time; f32
// weights are used as they lie. One FMA per product, k ascending.

#include "ops/cpu/decode.h"
#include "ops/cpu/products_avx2.h"

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
        decode_tiles(L, job.raw_type, tiles, job.k, begin / kBlockK, panel);
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
template <Layout L>
void decoded_rows(const Job& job) {
  rows_of<L>(job);
}
template void decoded_rows<Layout::w8>(const Job&);
template void decoded_rows<Layout::w4k>(const Job&);
template void decoded_rows<Layout::w5k>(const Job&);
template void decoded_rows<Layout::w6k>(const Job&);
template void decoded_rows<Layout::raw>(const Job&);

}  // namespace braid::cpu::avx2
