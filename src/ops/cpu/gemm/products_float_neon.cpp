// products_float_neon.cpp -- float and decoded weights times f32 activations, on aarch64.
// Sums of 16 rows and up to 4 activation rows stay in registers over 256 k. f32, f16 and bf16 are
// converted at use; other layouts are decoded first. One FMA per product, k ascending.

#if defined(__aarch64__)
#include <arm_neon.h>

#include "ops/cpu/gemm/decode.h"
#include "ops/cpu/gemm/kernels_neon.h"

namespace braid::cpu::neon {
namespace {

#define BRAID_INLINE __attribute__((always_inline)) inline

constexpr int kTile = 4;
constexpr int kAheadBytes = 4096;

template <Layout L>
BRAID_INLINE float32x4_t load_four(const std::byte* tiles, int64_t i, bool odd, int r) {
  if constexpr (L == Layout::f32) {
    return vld1q_f32(reinterpret_cast<const float*>(tiles) + 16 * i + 4 * r);
  } else if constexpr (L == Layout::f16) {
    const auto* q = reinterpret_cast<const uint16_t*>(tiles) + 16 * i + 4 * r;
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(q)));
  } else {
    // Pairs of k: the lower half of each word is the even one.
    const auto* q = reinterpret_cast<const uint32_t*>(tiles) + 16 * (i >> 1) + 4 * r;
    const uint32x4_t pair = vld1q_u32(q);
    const uint32x4_t bits = odd ? vandq_u32(pair, vdupq_n_u32(0xffff0000u)) : vshlq_n_u32(pair, 16);
    return vreinterpretq_f32_u32(bits);
  }
}

template <Layout L, int M, int kLane>
BRAID_INLINE void add_k(const std::byte* tiles, int64_t i, bool odd, const float32x4_t* x,
                        float32x4_t (*acc)[4]) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; r++) {
    const float32x4_t w = load_four<L>(tiles, i + kLane, odd, r);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) acc[m][r] = vfmaq_laneq_f32(acc[m][r], w, x[m], kLane);
  }
}

// x_in[m] points to the activation of k = begin.
template <Layout L, int M>
__attribute__((noinline)) void add_rows(const std::byte* tiles, int64_t begin, int64_t count,
                                        bool first, const float* const* x_in, float* const* out) {
  const float* in[M];
  float32x4_t acc[M][4], x[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
    in[m] = x_in[m];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) acc[m][r] = first ? vdupq_n_f32(0) : vld1q_f32(out[m] + 4 * r);
  }
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    __builtin_prefetch(reinterpret_cast<const char*>(tiles) +
                       (L == Layout::f32 ? 64 : 32) * (begin + i) + kAheadBytes);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) x[m] = vld1q_f32(in[m] + i);
    add_k<L, M, 0>(tiles, begin + i, false, x, acc);
    add_k<L, M, 1>(tiles, begin + i, true, x, acc);
    add_k<L, M, 2>(tiles, begin + i, false, x, acc);
    add_k<L, M, 3>(tiles, begin + i, true, x, acc);
  }
  for (; i < count; i++) {
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) x[m] = vdupq_n_f32(in[m][i]);
    add_k<L, M, 0>(tiles, begin + i, (i & 1) != 0, x, acc);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) vst1q_f32(out[m] + 4 * r, acc[m][r]);
  }
}

template <Layout L>
void add_block(const Job& job, int64_t group, const std::byte* tiles, int64_t at, int64_t begin,
               int64_t count) {
  for (int64_t m = 0; m < job.rows; m += kTile) {
    const int64_t left = job.rows - m;
    const float* x[kTile];
    float* out[kTile];
    for (int64_t i = 0; i < kTile && i < left; i++) {
      const int64_t row = job.row != nullptr ? job.row[m + i] : job.first + m + i;
      x[i] = job.act.x + row * job.act.x_stride + begin;
      out[i] = job.out + (m + i) * job.out_stride + 16 * group;
    }
    switch (left) {
      case 1:
        add_rows<L, 1>(tiles, at, count, begin == 0, x, out);
        break;
      case 2:
        add_rows<L, 2>(tiles, at, count, begin == 0, x, out);
        break;
      case 3:
        add_rows<L, 3>(tiles, at, count, begin == 0, x, out);
        break;
      default:
        add_rows<L, 4>(tiles, at, count, begin == 0, x, out);
        break;
    }
  }
}

template <Layout L>
void rows_of(const Job& job) {
  constexpr bool plain = L == Layout::f32 || L == Layout::f16 || L == Layout::bf16;
  for (int64_t g = 0; g < job.groups; g++) {
    const std::byte* tiles = job.tiles + static_cast<size_t>(g) * job.group_bytes;
    for (int64_t begin = 0; begin < job.k; begin += kBlockK) {
      const int64_t count = job.k - begin < kBlockK ? job.k - begin : kBlockK;
      if constexpr (plain) {
        add_block<L>(job, g, tiles, begin, begin, count);
      } else {
        decode_tiles(L, job.raw_type, tiles, job.k, begin / kBlockK,
                     reinterpret_cast<float*>(job.scratch));
        add_block<Layout::f32>(job, g, job.scratch, 0, begin, count);
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
#define BRAID_DECODED(l) template void decoded_rows<Layout::l>(const Job&);
BRAID_SMALL_LAYOUTS(BRAID_DECODED)

}  // namespace braid::cpu::neon
#endif
