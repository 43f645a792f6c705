// products_neon.h -- quantized weights on aarch64: Q8_0 with int8 and int16 activations, Q4_K, Q5_K
// and Q6_K with int8. Included by products_neon.cpp and products_neon_dotprod.cpp (with sdot).
//
// Four registers hold a quad of 16 rows; sdot multiplies each with four bytes of one activation
// row, taken from a lane. Codes are made signed (w8: the top bit of code + 128 is flipped; w6k:
// minus 32), so sums start at zero. Without sdot, products are words and added in pairs. K-quants
// are unpacked to bytes 256 k at a time, for all rows; scales are applied in integers.
#pragma once

#include <arm_neon.h>

#include "ops/cpu/gemm/kernels_neon.h"

namespace braid::cpu::neon {
namespace {

#define BRAID_INLINE __attribute__((always_inline)) inline
// Makes clang's assembler accept sdot; for g++ products_neon_dotprod.cpp has a pragma. Inline
// assembly, because clang's headers hide the intrinsic without per-file flags.
#if defined(__clang__)
#define BRAID_DOTPROD ".arch_extension dotprod\n\t"
#else
#define BRAID_DOTPROD ""
#endif

constexpr int kAheadBytes = 4096;

BRAID_INLINE int64_t job_row(const Job& job, int64_t m) {
  return job.row != nullptr ? job.row[m] : job.first + m;
}

// Words: without sdot, pairs are added in 16 bits, which hold 2 x 128 x 127 but not 2 x 128 x 128
// (the low plane of int16 codes needs longs).
enum class Sum { dot, words, longs };

template <Sum kSum, int kLane>
BRAID_INLINE void add_quad(int32x4_t& s, int8x16_t w, int8x16_t x) {
  if constexpr (kSum == Sum::dot) {
    asm(BRAID_DOTPROD "sdot %[s].4s, %[w].16b, %[x].4b[%[lane]]"
        : [s] "+w"(s)
        : [w] "w"(w), [x] "w"(x), [lane] "i"(kLane));
  } else {
    const int8x16_t quad = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), kLane));
    const int16x8_t a = vmull_s8(vget_low_s8(w), vget_low_s8(quad)), b = vmull_high_s8(w, quad);
    if constexpr (kSum == Sum::words) {
      s = vpadalq_s16(s, vpaddq_s16(a, b));
    } else {
      s = vaddq_s32(s, vpaddq_s32(vpaddlq_s16(a), vpaddlq_s16(b)));
    }
  }
}

template <Sum kSum, int M, bool kFlip, int kLane>
BRAID_INLINE void quad_of(const uint8_t* q, const int8x16_t* x, int32x4_t (*s)[4]) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; r++) {
    const uint8x16_t bytes = vld1q_u8(q + 16 * r);
    const int8x16_t w = vreinterpretq_s8_u8(kFlip ? veorq_u8(bytes, vdupq_n_u8(128)) : bytes);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) add_quad<kSum, kLane>(s[m][r], w, x[m]);
  }
}

template <Sum kSum, int M, bool kFlip>
BRAID_INLINE void add_16(const uint8_t* q, const int8_t* const* x, int offset, int32x4_t (*s)[4]) {
  int8x16_t v[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) v[m] = vld1q_s8(x[m] + offset);
  quad_of<kSum, M, kFlip, 0>(q, v, s);
  quad_of<kSum, M, kFlip, 1>(q + 64, v, s);
  quad_of<kSum, M, kFlip, 2>(q + 128, v, s);
  quad_of<kSum, M, kFlip, 3>(q + 192, v, s);
}

template <int M>
BRAID_INLINE void clear(int32x4_t (*s)[4]) {
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) s[m][0] = s[m][1] = s[m][2] = s[m][3] = vdupq_n_s32(0);
}

BRAID_INLINE float32x4_t load_half4(const uint16_t* p, int r) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * r)));
}

// Row tiles of M = 4 and the rest with sdot; of 2 without, where products need registers too.
template <bool kDot, typename Run>
BRAID_INLINE void for_tiles(int64_t rows, const Run& run) {
  int64_t m = 0;
  if constexpr (kDot) {
    for (; m + 4 <= rows; m += 4) run.template rows<4>(m);
    if (rows - m == 3) return run.template rows<3>(m);
  }
  for (; m + 2 <= rows; m += 2) run.template rows<2>(m);
  if (m < rows) run.template rows<1>(m);
}

template <bool kDot, bool kWide>
struct Group8 {
  const Job& job;
  const W8* tiles;
  int64_t group;

  template <int M>
  __attribute__((noinline)) void rows(int64_t m0) const {
    int64_t row[M];
    float32x4_t acc[M][4];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      row[m] = job_row(job, m0 + m);
      acc[m][0] = acc[m][1] = acc[m][2] = acc[m][3] = vdupq_n_f32(0);
    }
    const int64_t subs = (job.k + 31) / 32;
    for (int64_t i = 0; i < subs; i++) {
      const int half = static_cast<int>(i & 1), sub = static_cast<int>(i & 7);
      const int64_t block = (i >> 3) * job.act.rows;
      int32x4_t s[M][4];
      sums<M>(tiles[i >> 1].q[8 * half], block, row, 32 * sub, s);
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) {
        const float32x4_t dw = load_half4(tiles[i >> 1].d[half], r);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
          const float da = job.act.head[block + row[m]].d[sub];
          acc[m][r] = vfmaq_f32(acc[m][r], vmulq_n_f32(vcvtq_f32_s32(s[m][r]), da), dw);
        }
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      float* out = job.out + (m0 + m) * job.out_stride + 16 * group;
      for (int r = 0; r < 4; r++) vst1q_f32(out + 4 * r, acc[m][r]);
    }
  }

  template <int M>
  BRAID_INLINE void sums(const uint8_t* q, int64_t block, const int64_t* row, int offset,
                         int32x4_t (*s)[4]) const {
    for (int i = 0; i < 8; i++) __builtin_prefetch(q + 64 * i + kAheadBytes);
    const int8_t* x[M];
    clear<M>(s);
    if constexpr (kWide) {
      for (int m = 0; m < M; m++) x[m] = job.act.nibbles[block + row[m]].high;
      add_32<kDot ? Sum::dot : Sum::words, M>(q, x, offset, s);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) s[m][r] = vshlq_n_s32(s[m][r], 8);
        x[m] = job.act.nibbles[block + row[m]].low;
      }
      add_32<kDot ? Sum::dot : Sum::longs, M>(q, x, offset, s);
    } else {
      for (int m = 0; m < M; m++) x[m] = job.act.codes[block + row[m]].q;
      add_32<kDot ? Sum::dot : Sum::words, M>(q, x, offset, s);
    }
  }
  template <Sum kSum, int M>
  static BRAID_INLINE void add_32(const uint8_t* q, const int8_t* const* x, int offset,
                                  int32x4_t (*s)[4]) {
    add_16<kSum, M, true>(q, x, offset, s);
    add_16<kSum, M, true>(q + 256, x, offset + 16, s);
  }
};

template <bool kDot, bool kWide>
void rows_8(const Job& job) {
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tiles =
        reinterpret_cast<const W8*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    for_tiles<kDot>(job.rows, Group8<kDot, kWide>{job, tiles, g});
  }
}

// K-quants: 256 k of a row group, unpacked.
struct alignas(64) Panel {
  uint8_t q[16][4][64];   // [group of 16 k][quad], signed codes
  int32_t scale[16][16];  // of each 32 k (the first 8), or of each 16 k
  float min[8][16];
  float d[16], dmin[16];
};
static_assert(sizeof(Panel) <= kScratchBytes);

BRAID_INLINE uint8x16_t bits(int b) { return vdupq_n_u8(static_cast<uint8_t>(b)); }

BRAID_INLINE void codes_of(const W4K& tile, int sub, int at, uint8x16_t* code) {
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; quad++) {
    const uint8x16_t x = vld1q_u8(tile.q[sub >> 1][quad] + at);
    code[quad] = (sub & 1) != 0 ? vshrq_n_u8(x, 4) : vandq_u8(x, bits(15));
  }
}
BRAID_INLINE void five_bit_codes(const uint8_t (*lines)[64], int at, uint8x16_t* code) {
  uint8x16_t x[5], spare[5];
#pragma GCC unroll 5
  for (int i = 0; i < 5; i++) {
    x[i] = vld1q_u8(lines[i] + at);
    code[i] = vandq_u8(x[i], bits(31));
    spare[i] = vshrq_n_u8(x[i], 5);
  }
  code[5] = vorrq_u8(vshlq_n_u8(spare[0], 2), vshrq_n_u8(spare[3], 1));
  code[6] = vorrq_u8(vshlq_n_u8(spare[1], 2), vshrq_n_u8(spare[4], 1));
  const uint8x16_t low =
      vorrq_u8(vshlq_n_u8(vandq_u8(spare[3], bits(1)), 1), vandq_u8(spare[4], bits(1)));
  code[7] = vorrq_u8(vshlq_n_u8(spare[2], 2), low);
}
BRAID_INLINE void codes_of(const W5K& tile, int sub, int at, uint8x16_t* code) {
  five_bit_codes(tile.q[sub], at, code);
}
BRAID_INLINE void codes_of(const W6K& tile, int sub, int at, uint8x16_t* code) {
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++) {
    uint8x16_t last = bits(0);
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
      const uint8x16_t x = vld1q_u8(tile.q[2 * sub + g][i] + at);
      code[4 * g + i] = vsubq_u8(vandq_u8(x, bits(63)), bits(32));
      last = vorrq_u8(last, vshlq_u8(vshrq_n_u8(x, 6), vdupq_n_s8(static_cast<int8_t>(2 * i))));
    }
    code[4 * g + 3] = vsubq_u8(last, bits(32));
  }
}

template <typename Tile>
__attribute__((noinline)) void unpack(const Tile& tile, Panel* panel) {
  for (size_t i = 0; i < sizeof(Tile); i += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(&tile) + i + kAheadBytes);
  }
  for (int sub = 0; sub < kSubBlocks; sub++) {
    for (int at = 0; at < 64; at += 16) {
      uint8x16_t code[8];
      codes_of(tile, sub, at, code);
#pragma GCC unroll 8
      for (int quad = 0; quad < 8; quad++)
        vst1q_u8(panel->q[2 * sub][0] + 64 * quad + at, code[quad]);
    }
    for (int r = 0; r < kGroupRows; r++) {
      if constexpr (sizeof(Tile) == sizeof(W6K)) {
        panel->scale[2 * sub][r] = tile.scale[sub][r][0];
        panel->scale[2 * sub + 1][r] = tile.scale[sub][r][1];
      } else {
        panel->scale[sub][r] = tile.scale[sub][r];
        panel->min[sub][r] = static_cast<float>(tile.min[sub][r]);
      }
    }
  }
  for (int r = 0; r < 4; r++) {
    vst1q_f32(panel->d + 4 * r, load_half4(tile.d, r));
    if constexpr (sizeof(Tile) != sizeof(W6K))
      vst1q_f32(panel->dmin + 4 * r, load_half4(tile.dmin, r));
  }
}

template <bool kDot, typename Tile>
struct BlockK {
  const Job& job;
  const Panel& panel;
  int64_t group, block;

  static constexpr bool kSix = sizeof(Tile) == sizeof(W6K);
  static constexpr Sum kSum = kDot ? Sum::dot : Sum::words;

  template <int M>
  __attribute__((noinline)) void rows(int64_t m0) const {
    const int8_t* x[M];
    const ActHead* head[M];
    float32x4_t f[M][4];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const int64_t at = block * job.act.rows + job_row(job, m0 + m);
      x[m] = job.act.codes[at].q;
      head[m] = job.act.head + at;
      f[m][0] = f[m][1] = f[m][2] = f[m][3] = vdupq_n_f32(0);
    }
    for (int sub = 0; sub < kSubBlocks; sub++) {
      int32x4_t s[M][4];
      clear<M>(s);
      add_16<kSum, M, false>(panel.q[2 * sub][0], x, 32 * sub, s);
      if constexpr (kSix) {
        int32x4_t first[M][4];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
          for (int r = 0; r < 4; r++) {
            first[m][r] = vmulq_s32(s[m][r], vld1q_s32(panel.scale[2 * sub] + 4 * r));
          }
        }
        clear<M>(s);
        add_16<kSum, M, false>(panel.q[2 * sub + 1][0], x, 32 * sub + 16, s);
        add_scaled<M>(first, s, panel.scale[2 * sub + 1], head, sub, f);
      } else {
        add_16<kSum, M, false>(panel.q[2 * sub + 1][0], x, 32 * sub + 16, s);
        int32x4_t zero[M][4];
        clear<M>(zero);
        add_scaled<M>(zero, s, panel.scale[sub], head, sub, f);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
      finish(f[m], *head[m], job.out + (m0 + m) * job.out_stride + 16 * group);
  }

  template <int M>
  static BRAID_INLINE void add_scaled(const int32x4_t (*first)[4], const int32x4_t (*s)[4],
                                      const int32_t* scale, const ActHead* const* head, int sub,
                                      float32x4_t (*f)[4]) {
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) {
        const int32x4_t sum = vmlaq_s32(first[m][r], s[m][r], vld1q_s32(scale + 4 * r));
        f[m][r] = vfmaq_n_f32(f[m][r], vcvtq_f32_s32(sum), head[m]->d[sub]);
      }
    }
  }

  BRAID_INLINE void finish(const float32x4_t* f, const ActHead& head, float* out) const {
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      float32x4_t acc = block == 0 ? vdupq_n_f32(0) : vld1q_f32(out + 4 * r);
      acc = vfmaq_f32(acc, vld1q_f32(panel.d + 4 * r), f[r]);
      if constexpr (!kSix) {
        float32x4_t mins = vdupq_n_f32(0);
#pragma GCC unroll 8
        for (int sub = 0; sub < kSubBlocks; sub++) {
          mins = vfmaq_n_f32(mins, vld1q_f32(panel.min[sub] + 4 * r), head.dsum[sub]);
        }
        acc = vfmsq_f32(acc, vld1q_f32(panel.dmin + 4 * r), mins);
      }
      vst1q_f32(out + 4 * r, acc);
    }
  }
};

template <bool kDot, typename Tile>
void rows_k(const Job& job) {
  auto* panel = reinterpret_cast<Panel*>(job.scratch);
  for (int64_t g = 0; g < job.groups; g++) {
    const auto* tiles =
        reinterpret_cast<const Tile*>(job.tiles + static_cast<size_t>(g) * job.group_bytes);
    for (int64_t b = 0; b < job.k / kBlockK; b++) {
      unpack(tiles[b], panel);
      for_tiles<kDot>(job.rows, BlockK<kDot, Tile>{job, *panel, g, b});
    }
  }
}

}  // namespace

template <bool kDot>
void w8_rows(const Job& job) {
  rows_8<kDot, false>(job);
}
template <bool kDot>
void w8_wide_rows(const Job& job) {
  rows_8<kDot, true>(job);
}
template <bool kDot>
void w4k_rows(const Job& job) {
  rows_k<kDot, W4K>(job);
}
template <bool kDot>
void w5k_rows(const Job& job) {
  rows_k<kDot, W5K>(job);
}
template <bool kDot>
void w6k_rows(const Job& job) {
  rows_k<kDot, W6K>(job);
}

}  // namespace braid::cpu::neon
