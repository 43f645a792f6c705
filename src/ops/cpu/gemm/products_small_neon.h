// products_small_neon.h -- small types; all quantized types but Q8_0 with int16 activations.
// Included where products_neon.h is. 256 k of a row group are unpacked to signed bytes (4 KB, stays
// in L1). int16 activations are two int8 planes: the high one's sum is shifted, the low one's
// added.
#pragma once

#include "ops/cpu/gemm/products_neon.h"

namespace braid::cpu::neon {
namespace {

struct alignas(64) SmallPanel {
  Panel k;  // codes; scales, minima and factors of K-quants
  float factor[kSubBlocks][2][16];
};
static_assert(sizeof(SmallPanel) <= kScratchBytes);

constexpr bool is_k(Layout l) { return l == Layout::w4k || l == Layout::w5k || l == Layout::w6k; }
constexpr bool by_16(Layout l) { return l == Layout::nvfp4 || l == Layout::w6k; }

template <Layout L>
BRAID_INLINE uint8x16_t signed_bytes(uint8x16_t codes) {
  if constexpr (is_iq4(L) || is_fp4(L)) {
    codes = vqtbl1q_u8(vld1q_u8(is_iq4(L) ? kIq4Bytes : kFp4Bytes), codes);
  }
  return small_offset(L) == 0 ? codes : vsubq_u8(codes, bits(small_offset(L)));
}

BRAID_INLINE void store_halves(float* to, const uint16_t* from) {
  for (int r = 0; r < 4; r++) vst1q_f32(to + 4 * r, load_half4(from, r));
}

template <Layout L, typename Tile>
BRAID_INLINE void unpack_factors(const Tile& tile, int half, int sub, SmallPanel* panel) {
  float* to = panel->factor[sub][0];
  if constexpr (L == Layout::mxfp4) {
    for (int r = 0; r < 16; r += 4) {
      vst1q_f32(to + r, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(tile.d[half] + r), 16)));
    }
  } else if constexpr (L == Layout::iq4_xs) {
    const auto* scales = reinterpret_cast<const int8_t*>(tile.d[1]) + 16 * half;
    store_halves(to, tile.d[0]);
    for (int r = 0; r < 16; r++) to[r] *= static_cast<float>(scales[r]);
  } else {
    store_halves(to, tile.d[half]);
    if constexpr (L == Layout::nvfp4) store_halves(panel->factor[sub][1], tile.second[half]);
    if constexpr (L == Layout::q4_1) store_halves(panel->k.min[sub], tile.second[half]);
  }
}

template <Layout L>
BRAID_INLINE void unpack_small(const std::byte* tiles, int64_t first, int subs, SmallPanel* panel) {
  const auto* tile = reinterpret_cast<const SmallTile<L>*>(tiles) + first / kTileSubs<L>;
  for (int sub = 0; sub < subs; sub++) {
    const SmallTile<L>& t = tile[sub / kTileSubs<L>];
    uint8_t(*to)[64] = panel->k.q[2 * sub];
    if constexpr (is_five(L)) {
      for (int at = 0; at < 64; at += 16) {
        uint8x16_t code[8];
        five_bit_codes(t.q, at, code);
        for (int quad = 0; quad < 8; quad++) vst1q_u8(to[quad] + at, signed_bytes<L>(code[quad]));
      }
      store_halves(panel->factor[sub][0], t.d);
      store_halves(panel->k.min[sub], t.min);
    } else {
      const bool odd = (sub & 1) != 0;
      for (int quad = 0; quad < 8; quad++) {
        __builtin_prefetch(t.q[quad] + kAheadBytes);
        for (int at = 0; at < 64; at += 16) {
          const uint8x16_t x = vld1q_u8(t.q[quad] + at);
          vst1q_u8(to[quad] + at, signed_bytes<L>(odd ? vshrq_n_u8(x, 4) : vandq_u8(x, bits(15))));
        }
      }
      unpack_factors<L>(t, sub & 1, sub, panel);
    }
  }
}

template <typename Tile>
BRAID_INLINE void unpack_k(const Tile& tile, SmallPanel* panel) {
  unpack(tile, &panel->k);
  for (int sub = 0; sub < kSubBlocks; sub++) {
    for (int part = 0; part < 2; part++) {
      const int group = sizeof(Tile) == sizeof(W6K) ? 2 * sub + part : sub;
      for (int r = 0; r < 16; r += 4) {
        vst1q_f32(panel->factor[sub][part] + r,
                  vcvtq_f32_s32(vld1q_s32(panel->k.scale[group] + r)));
      }
    }
  }
}

template <Layout L>
BRAID_INLINE void unpack_any(const std::byte* tiles, int64_t first, int subs, SmallPanel* panel) {
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

template <bool kDot, bool kWide, Layout L>
struct BlockSmall {
  const Job& job;
  const SmallPanel& panel;
  int64_t group, block;
  int subs;

  static constexpr int kParts = by_16(L) ? 2 : 1;

  template <int M>
  __attribute__((noinline)) void rows(int64_t m0) const {
    int64_t at[M];
    float32x4_t acc[M][4], f[M][4];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      at[m] = block * job.act.rows + job_row(job, m0 + m);
      const float* out = job.out + (m0 + m) * job.out_stride + 16 * group;
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) {
        acc[m][r] = block == 0 ? vdupq_n_f32(0) : vld1q_f32(out + 4 * r);
        f[m][r] = vdupq_n_f32(0);
      }
    }
    for (int sub = 0; sub < subs; sub++) add_sub<M>(sub, at, is_k(L) ? f : acc);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      finish(job.act.head[at[m]], f[m], acc[m], job.out + (m0 + m) * job.out_stride + 16 * group);
    }
  }

  template <int M>
  BRAID_INLINE void add_sub(int sub, const int64_t* at, float32x4_t (*f)[4]) const {
    float32x4_t scaled[M][4];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; part++) {
      int32x4_t s[M][4];
      sums<M>(sub, part, at, s);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const float d = job.act.head[at[m]].d[sub];
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
          const float32x4_t sum = vcvtq_f32_s32(s[m][r]);
          const float32x4_t factor = vld1q_f32(panel.factor[sub][part] + 4 * r);
          if constexpr (!is_k(L)) {
            f[m][r] = vfmaq_f32(f[m][r], vmulq_n_f32(sum, d), factor);
          } else {
            scaled[m][r] =
                part == 0 ? vmulq_f32(sum, factor) : vfmaq_f32(scaled[m][r], sum, factor);
            if (part == kParts - 1) f[m][r] = vfmaq_n_f32(f[m][r], scaled[m][r], d);
          }
        }
      }
    }
  }

  // s[m] = sums of 32 k, or of 16 k: part 0 or 1.
  template <int M>
  BRAID_INLINE void sums(int sub, int part, const int64_t* at, int32x4_t (*s)[4]) const {
    constexpr Sum kSum = kDot ? Sum::dot : Sum::words, kLow = kDot ? Sum::dot : Sum::longs;
    const uint8_t* q = panel.k.q[2 * sub + part][0];
    const int offset = 32 * sub + 16 * part;
    const int8_t* x[M];
    clear<M>(s);
    if constexpr (kWide) {
      for (int m = 0; m < M; m++) x[m] = job.act.nibbles[at[m]].high;
      add_part<kSum, M>(q, x, offset, s);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) s[m][r] = vshlq_n_s32(s[m][r], 8);
        x[m] = job.act.nibbles[at[m]].low;
      }
      add_part<kLow, M>(q, x, offset, s);
    } else {
      for (int m = 0; m < M; m++) x[m] = job.act.codes[at[m]].q;
      add_part<kSum, M>(q, x, offset, s);
    }
  }
  template <Sum kSum, int M>
  static BRAID_INLINE void add_part(const uint8_t* q, const int8_t* const* x, int offset,
                                    int32x4_t (*s)[4]) {
    add_16<kSum, M, false>(q, x, offset, s);
    if constexpr (kParts == 1) add_16<kSum, M, false>(q + 256, x, offset + 16, s);
  }

  BRAID_INLINE void finish(const ActHead& head, const float32x4_t* f, const float32x4_t* acc,
                           float* out) const {
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      float32x4_t sum = acc[r];
      if constexpr (is_k(L)) {
        sum = vfmaq_f32(sum, vld1q_f32(panel.k.d + 4 * r), f[r]);
        if constexpr (!by_16(L)) {
          const float32x4_t mins = add_mins(head, r, vdupq_n_f32(0));
          sum = vfmsq_f32(sum, vld1q_f32(panel.k.dmin + 4 * r), mins);
        }
      } else if constexpr (has_min(L)) {
        sum = add_mins(head, r, sum);
      }
      vst1q_f32(out + 4 * r, sum);
    }
  }
  BRAID_INLINE float32x4_t add_mins(const ActHead& head, int r, float32x4_t sum) const {
    for (int sub = 0; sub < subs; sub++) {
      sum = vfmaq_n_f32(sum, vld1q_f32(panel.k.min[sub] + 4 * r), head.dsum[sub]);
    }
    return sum;
  }
};

template <bool kDot, bool kWide, Layout L>
void multiply_small(const Job& job) {
  auto* panel = reinterpret_cast<SmallPanel*>(job.scratch);
  const int64_t subs_all = (job.k + 31) / 32;
  for (int64_t g = 0; g < job.groups; g++) {
    const std::byte* tiles = job.tiles + static_cast<size_t>(g) * job.group_bytes;
    for (int64_t first = 0; first < subs_all; first += kSubBlocks) {
      const int subs =
          static_cast<int>(subs_all - first < kSubBlocks ? subs_all - first : kSubBlocks);
      unpack_any<L>(tiles, first, subs, panel);
      for_tiles<kDot>(job.rows,
                      BlockSmall<kDot, kWide, L>{job, *panel, g, first / kSubBlocks, subs});
    }
  }
}

}  // namespace

template <bool kDot, Layout L>
void small_rows(const Job& job) {
  multiply_small<kDot, false, L>(job);
}
template <bool kDot, Layout L>
void wide_rows(const Job& job) {
  multiply_small<kDot, true, L>(job);
}

#define BRAID_SMALL_KERNELS(dot, l)                     \
  template void small_rows<dot, Layout::l>(const Job&); \
  template void wide_rows<dot, Layout::l>(const Job&);
#define BRAID_K_KERNELS(dot)                             \
  template void wide_rows<dot, Layout::w4k>(const Job&); \
  template void wide_rows<dot, Layout::w5k>(const Job&); \
  template void wide_rows<dot, Layout::w6k>(const Job&);

}  // namespace braid::cpu::neon
