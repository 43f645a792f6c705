// sealed_units.cuh -- a unit of a sealed block (ops/kv) as operands of mma.sync, straight from its
// codes.
//
// Units are [channel][32 cells], so 16 bytes of a channel are a row of an 8 x 8 matrix of ldmatrix.
// For V^T, whose rows are channels, a lane gets 32 bits of its channel. For K, whose rows are
// cells, ldmatrix transposes: a lane gets 16 bits each of two channels, for several cells.
//
// Codes become f16 by masking alone: code << 4 n as the bits of an f16 is code 2^(4 n - 24), exact
// within the ten bits of a mantissa. All codes of an operand row lie at the same bits, so the power
// of two is one factor per row. Factors of channels (c5, c4) go into q or the unit's sums of
// values. Factors of rows and groups (classic types, codebooks) go into sums of scores or into the
// weights. Offsets of codes are products with constants. High bits are first moved to the places of
// a nibble plane.
//
// Cells of a lane, lane = 4 g + c. Scores s[tile][i], queries 2 c + i % 2:
//   s[0][0..1] cell 2 g       s[0][2..3] cell 2 g + 16
//   s[1][0..1] cell 2 g + 1   s[1][2..3] cell 2 g + 17
// Weights p[i] (weights_of) and codes r[i], pairs of cells, p of query g:
//   p[0] 4 c, 4 c + 2         p[1] 4 c + 1, 4 c + 3
//   p[2] 4 c + 16, 4 c + 18   p[3] 4 c + 17, 4 c + 19
#pragma once

#include <cstdint>

#include "ops/cuda/attention/unit_seal.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/mma.h"

namespace braid::cuda::sealed_attention {

constexpr bool reads_codes(UnitKind kind) { return family_of(kind) != UnitFamily::number; }

__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(low), "r"(high), "r"(selector));
  return y;
}
__device__ inline __half2 half2_of(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ inline uint32_t bits_of(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }
__device__ inline uint32_t times(uint32_t x, uint32_t y) {
  return bits_of(__hmul2(half2_of(x), half2_of(y)));
}
__device__ inline float power_of_two(int e) { return __int_as_float((e + 127) << 23); }
template <typename T>
__device__ const T& at(const uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}

__host__ __device__ constexpr uint32_t twice(uint32_t bits) { return bits | bits << 16; }

inline constexpr uint32_t kNibble0 = 0x000f000f, kNibble1 = 0x00f000f0;
inline constexpr uint32_t kEvenBytes = 0x00ff00ff;

// r[0] and r[2] get codes at bit 0 of their halves, r[1] and r[3] at bit 4. `low`: nibbles r[0] to
// r[3] from each half's lowest bits up; `high`: the fifth bits, at the lowest bits of nibbles.
template <int kBits>
__device__ inline void numbers_of(uint32_t (&r)[4], uint32_t low, uint32_t high) {
  const uint32_t low8 = low >> 8;
  r[0] = low & kNibble0;
  r[1] = low & kNibble1;
  r[2] = low8 & kNibble0;
  r[3] = low8 & kNibble1;
  if constexpr (kBits > 4) {
    constexpr uint32_t kHigh0 = 0x00100010, kHigh1 = kHigh0 << 4;
    const uint32_t up = high << 4, down = high >> 4;
    r[0] |= up & kHigh0;
    r[1] |= up & kHigh1;
    r[2] |= down & kHigh0;
    r[3] |= down & kHigh1;
  }
}

// K: channels 2 c, 2 c + 1 of eight from `channel` on, in halves. V: channel g, 4 cells in bytes.
template <int kHeadDim, int kBits>
struct Planes {
  static constexpr int kLow = low_bits_of(kBits);
  static constexpr bool kHasHigh = kBits > kLow;  // then of one bit
  static_assert(kBits <= 5);
  const uint8_t* unit;
  int lane;

  // Two bits of each cell, at the places of nibbles.
  __device__ uint32_t key_pairs(const uint8_t* plane, int channel) const {
    const uint8_t* from = plane + (channel + lane % 4 * 2) * 8 + lane / 4 % 4 * 2;
    const uint32_t two = permute(at<uint16_t>(from), at<uint16_t>(from + 8), 0x5410);
    return two >> lane / 16 * 2;
  }
  __device__ uint32_t value_pairs(const uint8_t* plane, int channel) const {
    return at<uint32_t>(plane + (channel + lane / 4) * 8 + lane % 2 * 4) >> lane % 4 / 2 * 2;
  }
  // One bit of each cell, at the lowest bits of nibbles.
  __device__ uint32_t key_bits(const uint8_t* plane, int channel) const {
    const uint2 two = at<uint2>(plane + (channel + lane % 4 * 2) * 4);
    const uint32_t first = two.x >> lane / 4 * 2, second = two.y >> lane / 4 * 2;
    const uint32_t bits = (permute(first, second, 0x5410) & 0x00030003) |
                          (permute(first, second, 0x7632) & 0x00030003) << 4;
    return (bits & 0x00110011) | (bits << 7 & 0x11001100);
  }
  __device__ uint32_t value_bits(const uint8_t* plane, int channel) const {
    const uint32_t own = at<uint32_t>(plane + (channel + lane / 4) * 4) >> lane % 4 * 4;
    constexpr uint32_t kSpread = 0x00204081;  // moves bits 0 to 3 to the lowest bit of each byte
    return ((own & 0xf) * kSpread & 0x01010101) | ((own >> 16 & 0xf) * kSpread & 0x01010101) << 4;
  }

  // The words of 32 channels, eight per word.
  __device__ void load_keys(uint32_t (&low)[4], uint32_t (&high)[4], int group) const {
    if constexpr (kLow == 4) {
      load_matrices_transposed(low, shared_address(unit) + group * 512 + lane * 16);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = group * 32 + i * 8;
      if constexpr (kLow == 2) {
        low[i] = (key_pairs(unit, channel) & 0x33333333) | key_bits(unit + 8 * kHeadDim, channel)
                                                               << 2;
      } else if constexpr (kHasHigh) {
        high[i] = key_bits(unit + 16 * kHeadDim, channel);
      }
    }
  }
  __device__ void load_values(uint32_t (&low)[4], uint32_t (&high)[4], int group) const {
    if constexpr (kLow == 4) load_matrices(low, shared_address(unit) + group * 512 + lane * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = group * 32 + i * 8;
      if constexpr (kLow == 2) {
        low[i] = (value_pairs(unit, channel) & 0x33333333) |
                 value_bits(unit + 8 * kHeadDim, channel) << 2;
      } else if constexpr (kHasHigh) {
        high[i] = value_bits(unit + 16 * kHeadDim, channel);
      }
    }
  }
};

// A table of all pairs of codebook levels, [byte][lane] of two f16: each lane reads its own bank.
inline constexpr int kLevelBytes = 256 * 32 * 4;
template <int kBits>
__device__ void make_level_table(uint8_t* table) {
  const auto level = [](int code) {
    return __float2half_rn(codebook_level<kBits>(code % (1 << kBits)));
  };
  for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) {
    const int codes = i / 32;
    reinterpret_cast<__half2*>(table)[i] = __halves2half2(level(codes % 16), level(codes / 16));
  }
}
// A lane's column. `codes`: a pair of codes from bit 7 on.
struct Levels {
  const uint8_t* table;
  uint32_t lane_bytes;
  __device__ uint32_t of(uint32_t codes) const {
    return at<uint32_t>(table + (codes | lane_bytes));
  }
};
// Levels of nibbles n and n + 4.
__device__ inline void split_levels(const Levels& levels, uint32_t codes, uint32_t (&r)[4]) {
  const uint32_t down5 = codes >> 5;
  r[0] = levels.of((codes << 7 & 0x780) | (down5 & 0x7800));
  r[1] = levels.of((codes << 3 & 0x780) | (codes >> 9 & 0x7800));
  r[2] = levels.of((codes >> 1 & 0x780) | (codes >> 13 & 0x7800));
  r[3] = levels.of((down5 & 0x780) | (codes >> 17 & 0x7800));
}
// Levels of nibbles 2 n and 2 n + 1: cells 4 c + n and 4 c + n + 16.
__device__ inline void byte_levels(const Levels& levels, uint32_t codes, uint32_t (&r)[4]) {
  r[0] = levels.of(codes << 7 & 0x7f80);
  r[1] = levels.of(codes >> 1 & 0x7f80);
  r[2] = levels.of(codes >> 9 & 0x7f80);
  r[3] = levels.of(codes >> 17 & 0x7f80);
}

// q8_0, a byte per code: 16 channels by 32 cells as four matrices.
__device__ inline uint32_t byte_rows(const uint8_t* unit, int product, int lane) {
  return shared_address(unit) + (product * 16 + lane / 8 % 2 * 8 + lane % 8) * 32 + lane / 16 * 16;
}
__device__ inline uint32_t odd_bytes(uint32_t word) { return word >> 8 & kEvenBytes; }

struct Queries {
  uint32_t rows;  // address of this lane's ldmatrix row of the f16 queries
  const float* sums;
  float scale;  // of the scores
};
__device__ inline float2 query_sums(const Queries& queries, int group, int lane) {
  return *reinterpret_cast<const float2*>(queries.sums + group * 8 + lane % 4 * 2);
}
// Cells g and g + 16 by 16 channels, for both tiles.
__device__ inline void score_product(float (&sum)[2][4], const uint32_t (&low)[4],
                                     const uint32_t (&high)[4], uint32_t b0, uint32_t b1) {
  mma(sum[0], {low[0], low[1], high[0], high[1]}, b0, b1, __half());
  mma(sum[1], {low[2], low[3], high[2], high[3]}, b0, b1, __half());
}
// Factors of sums of codes: 2^24 and 2^20 for the two kinds of rows.
__device__ inline float row_unit(int i) { return power_of_two(i < 2 ? 24 : 20); }

// Minus half of the code range, as f16.
__host__ __device__ constexpr uint32_t half_range_bits(int bits) {
  return bits == 4 ? 0xc780 : 0xcbc0;
}

// [product of 16 channels][c] of f16 pairs s(2 c, 2 c + 1), s(2 c + 8, 2 c + 9), z of the same;
// scales and zeros divided by 2^(e0 + 14).
template <int kHeadDim, int kBits>
__device__ void make_key_table(const uint8_t* planes, uint8_t* table, int lane) {
  if (lane >= kHeadDim / 8) return;
  constexpr uint32_t kHalfRange = twice(half_range_bits(kBits));
  const int base = lane / 2 * 16 + lane % 2 * 4;
  const uint32_t head = at<uint32_t>(planes + 2 * kHeadDim);
  const int e = static_cast<int8_t>(head >> 16) + 14;
  const float step = __half2float(__ushort_as_half(static_cast<uint16_t>(head))) * power_of_two(-e);
  const __half2 steps = __float2half2_rn(step);
  const uint32_t s[2] = {at<uint32_t>(planes + base), at<uint32_t>(planes + base + 8)};
  const uint32_t m[2] = {at<uint32_t>(planes + kHeadDim + base) ^ 0x80808080u,
                         at<uint32_t>(planes + kHeadDim + base + 8) ^ 0x80808080u};
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const uint32_t selector = pair == 0 ? 0x4140 : 0x4342;
    uint32_t scales[2], zeros[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[i] = permute(s[i], 0, selector) * 64 + twice(0x0400);
      const __half2 middle =
          __hsub2(half2_of(permute(m[i], 0x64646464, selector)), half2_of(twice(0x6480)));
      zeros[i] = bits_of(__hfma2(middle, steps, half2_of(times(scales[i], kHalfRange))));
    }
    *reinterpret_cast<uint4*>(table + (lane / 2 * 4 + lane % 2 * 2 + pair) * 16) = {
        scales[0], scales[1], zeros[0], zeros[1]};
  }
}

template <int kHeadDim, int kBits>
__device__ void score_channels(float (&s)[2][4], const uint8_t* unit, uint8_t* table,
                               const Queries& queries, int lane) {
  const uint8_t* planes = unit + code_plane_bytes(kBits, kHeadDim);
  make_key_table<kHeadDim, kBits>(planes, table, lane);
  __syncwarp();
  const Planes<kHeadDim, kBits> codes{unit, lane};
  float sum[2][4] = {}, zero[4] = {};
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t low[4], high[4], q[4];
    codes.load_keys(low, high, group);
    load_matrices(q, queries.rows + group * 64);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 channels = at<uint4>(table + ((2 * group + h) * 4 + lane % 4) * 16);
      uint32_t first[4], second[4];
      numbers_of<kBits>(first, low[2 * h], high[2 * h]);
      numbers_of<kBits>(second, low[2 * h + 1], high[2 * h + 1]);
      score_product(sum, first, second, times(q[2 * h], channels.x),
                    times(q[2 * h + 1], channels.y));
      mma(zero, {channels.z, channels.z, channels.w, channels.w}, q[2 * h], q[2 * h + 1], __half());
    }
  }
  const float scale =
      queries.scale * power_of_two(static_cast<int8_t>(planes[2 * kHeadDim + 2]) + 14);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float z = zero[i] * scale;
    s[0][i] = fmaf(sum[0][i], scale * row_unit(i), z);
    s[1][i] = fmaf(sum[1][i], scale * row_unit(i), z);
  }
}

// s += sums times the factors of cells. `unit` applies to i < 2, `other_unit` to the rest.
__device__ inline void add_cells(float (&s)[2][4], const float (&sum)[2][4], const uint8_t* factors,
                                 float unit, float other_unit, int lane) {
  const uint8_t* from = factors + lane / 4 * 4;
  const float2 low = unpack(at<uint32_t>(from), __half()),
               high = unpack(at<uint32_t>(from + 32), __half());
  const float f[2][2] = {{low.x * unit, high.x * other_unit}, {low.y * unit, high.y * other_unit}};
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[tile][i] = fmaf(sum[tile][i], f[tile][i / 2], s[tile][i]);
  }
}

// Blocks of 32 values with a scale, or a scale and a minimum.
template <int kHeadDim, UnitKind kKind>
__device__ void score_classic(float (&s)[2][4], const uint8_t* unit, const Queries& queries,
                              int lane) {
  constexpr int kBits = bits_of_kind(kKind);
  constexpr bool kMinimum = has_minimum(kKind);
  const uint8_t* factors = unit + code_plane_bytes(kBits, kHeadDim);
  const Planes<kHeadDim, kBits> codes{unit, lane};
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t low[4], high[4], q[4];
    codes.load_keys(low, high, group);
    load_matrices(q, queries.rows + group * 64);
    const float2 all = query_sums(queries, group, lane);
    float sum[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float offset = kMinimum ? 0.0f : static_cast<float>(-(1 << (kBits - 1)));
      sum[0][i] = sum[1][i] =
          offset * (i % 2 == 0 ? all.x : all.y) * power_of_two(i < 2 ? -24 : -20);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t first[4], second[4];
      numbers_of<kBits>(first, low[2 * h], high[2 * h]);
      numbers_of<kBits>(second, low[2 * h + 1], high[2 * h + 1]);
      score_product(sum, first, second, q[2 * h], q[2 * h + 1]);
    }
    add_cells(s, sum, factors + group * 64, queries.scale * row_unit(0),
              queries.scale * row_unit(2), lane);
    if constexpr (kMinimum) {
      const float ones[2][4] = {{all.x, all.y, all.x, all.y}, {all.x, all.y, all.x, all.y}};
      add_cells(s, ones, factors + kHeadDim / 32 * 64 + group * 64, queries.scale, queries.scale,
                lane);
    }
  }
}

template <int kHeadDim, int kBits>
__device__ void score_codebook(float (&s)[2][4], const uint8_t* unit, const Levels& levels,
                               const Queries& queries, int lane) {
  const Planes<kHeadDim, kBits> codes{unit, lane};
#pragma unroll
  for (int norm = 0; norm < kHeadDim / 128; ++norm) {
    float sum[2][4] = {};
#pragma unroll
    for (int group = 4 * norm; group < 4 * norm + 4; ++group) {
      uint32_t low[4], high[4], q[4];
      codes.load_keys(low, high, group);
      load_matrices(q, queries.rows + group * 64);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t first[4], second[4];
        split_levels(levels, low[2 * h], first);
        split_levels(levels, low[2 * h + 1], second);
        score_product(sum, first, second, q[2 * h], q[2 * h + 1]);
      }
    }
    add_cells(s, sum, unit + code_plane_bytes(kBits, kHeadDim) + norm * 64, queries.scale,
              queries.scale, lane);
  }
}

template <int kHeadDim>
__device__ void score_q8(float (&s)[2][4], const uint8_t* unit, const Queries& queries, int lane) {
  const float one = queries.scale * power_of_two(24);
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t q[4];
    load_matrices(q, queries.rows + group * 64);
    const float2 all = query_sums(queries, group, lane);
    float sum[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[0][i] = sum[1][i] = -128.0f * power_of_two(-24) * (i % 2 == 0 ? all.x : all.y);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t k[4];
      load_matrices_transposed(k, byte_rows(unit, 2 * group + h, lane));
      mma(sum[0], {k[0] & kEvenBytes, k[2] & kEvenBytes, k[1] & kEvenBytes, k[3] & kEvenBytes},
          q[2 * h], q[2 * h + 1], __half());
      mma(sum[1], {odd_bytes(k[0]), odd_bytes(k[2]), odd_bytes(k[1]), odd_bytes(k[3])}, q[2 * h],
          q[2 * h + 1], __half());
    }
    add_cells(s, sum, unit + 32 * kHeadDim + group * 64, one, one, lane);
  }
}

__device__ inline void weights_of(uint32_t (&p)[4], const float (&s)[2][4]) {
  p[0] = transpose_matrix(pack(s[0][0], s[0][1], __half()));
  p[1] = transpose_matrix(pack(s[1][0], s[1][1], __half()));
  p[2] = transpose_matrix(pack(s[0][2], s[0][3], __half()));
  p[3] = transpose_matrix(pack(s[1][2], s[1][3], __half()));
}
// Weights times factors of cells, f16 [32].
__device__ inline void weigh_cells(uint32_t (&to)[4], const uint32_t (&p)[4],
                                   const uint8_t* factors, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 f = at<uint2>(factors + half * 32 + lane % 4 * 8);
    to[2 * half] = times(p[2 * half], permute(f.x, f.y, 0x5410));
    to[2 * half + 1] = times(p[2 * half + 1], permute(f.x, f.y, 0x7632));
  }
}
// As above; `first` multiplies the factors of the first 16 cells, `second` the others.
__device__ inline void weigh_cells(uint32_t (&to)[4], const uint32_t (&p)[4],
                                   const uint8_t* factors, int lane, uint32_t first,
                                   uint32_t second) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 f = at<uint2>(factors + half * 32 + lane % 4 * 8);
    const uint32_t by = half == 0 ? first : second;
    to[2 * half] = times(p[2 * half], times(permute(f.x, f.y, 0x5410), by));
    to[2 * half + 1] = times(p[2 * half + 1], times(permute(f.x, f.y, 0x7632), by));
  }
}
__device__ inline void scale_halves(uint32_t (&p)[4], uint32_t first, uint32_t second) {
  p[0] = times(p[0], first);
  p[1] = times(p[1], first);
  p[2] = times(p[2], second);
  p[3] = times(p[3], second);
}
// To all channels of a tile: `first` for each of the first 16 cells, `second` for the others.
__device__ inline void add_constants(float (&sum)[4], uint32_t first, uint32_t second,
                                     const uint32_t (&b)[4]) {
  mma(sum, {first, first, first, first}, b[0], b[1], __half());
  mma(sum, {second, second, second, second}, b[2], b[3], __half());
}
// 16 channels, 8 from each word: cells of b[0] and b[1], then the others.
__device__ inline void value_product(float (&sum)[4], const uint32_t (&low)[4],
                                     const uint32_t (&high)[4], const uint32_t (&b)[4]) {
  mma(sum, {low[0], high[0], low[2], high[2]}, b[0], b[1], __half());
  mma(sum, {low[1], high[1], low[3], high[3]}, b[2], b[3], __half());
}

// [tile of 16 channels][g]: scale and zero of channels g, g + 8, times 2^scale_power, 2^zero_power.
template <int kHeadDim, int kBits>
__device__ void make_value_table(const uint8_t* planes, uint8_t* table, int scale_power,
                                 int zero_power, int lane) {
  if (lane >= kHeadDim / 8) return;
  constexpr float kHalfRange = -0.5f * static_cast<float>((1 << kBits) - 1);
  const int base = lane / 2 * 16 + lane % 2 * 4;
  const uint32_t head = at<uint32_t>(planes + 2 * kHeadDim);
  const uint32_t exponent =
      static_cast<uint32_t>(static_cast<int8_t>(head >> 16) + 127 + scale_power) << 23;
  const float step =
      __half2float(__ushort_as_half(static_cast<uint16_t>(head))) * power_of_two(zero_power);
  const float half_range = kHalfRange * power_of_two(zero_power - scale_power);
  const uint32_t s[2] = {at<uint32_t>(planes + base), at<uint32_t>(planes + base + 8)};
  const uint32_t m[2] = {at<uint32_t>(planes + kHeadDim + base) ^ 0x80808080u,
                         at<uint32_t>(planes + kHeadDim + base + 8) ^ 0x80808080u};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float scale[2], zero[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = __uint_as_float(((s[h] >> 8 * i & 0xff) << 19) + exponent);
      const float middle = __uint_as_float(permute(m[h], 0x4b000000, 0x7650 + i)) - 8388736.0f;
      zero[h] = fmaf(middle, step, half_range * scale[h]);
    }
    *reinterpret_cast<float4*>(table + (lane / 2 * 8 + lane % 2 * 4 + i) * 16) = {
        scale[0], zero[0], scale[1], zero[1]};
  }
}

template <int kHeadDim, int kBits>
__device__ void add_channels(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4],
                             const uint8_t* unit, uint8_t* table, int lane) {
  const uint8_t* planes = unit + code_plane_bytes(kBits, kHeadDim);
  const uint8_t* factors = planes + 2 * kHeadDim + 16;
  // A power of two scales the factors so that weights times the largest fit f16. Codes of the two
  // products are 2^-24 and 2^-20; factors of 2^8 and 2^4 make both sums 2^-16.
  const unsigned largest =
      __reduce_max_sync(kFullWarp, static_cast<unsigned>(at<uint16_t>(factors + 2 * lane)));
  const int power = min(max(static_cast<int>(largest >> 10) - 15, -7), 14);
  make_value_table<kHeadDim, kBits>(planes, table, 16 + power, power, lane);
  uint32_t b[4];
  weigh_cells(b, p, factors, lane, twice(static_cast<uint32_t>(15 + 8 - power) << 10),
              twice(static_cast<uint32_t>(15 + 4 - power) << 10));
  float all[4] = {};
  add_constants(all, twice(0x1c00), twice(0x2c00), b);  // 2^-8, 2^-4
  __syncwarp();
  const Planes<kHeadDim, kBits> codes{unit, lane};
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t low[4], high[4];
    codes.load_values(low, high, group);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int tile = 2 * group + h;
      uint32_t first[4], second[4];
      numbers_of<kBits>(first, low[2 * h], high[2 * h]);
      numbers_of<kBits>(second, low[2 * h + 1], high[2 * h + 1]);
      float sum[4] = {};
      value_product(sum, first, second, b);
      const float4 channels = at<float4>(table + (tile * 8 + lane / 4) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        o[tile][i] = fmaf(channels.x, sum[i], fmaf(channels.y, all[i], o[tile][i]));
        o[tile][i + 2] = fmaf(channels.z, sum[i + 2], fmaf(channels.w, all[i], o[tile][i + 2]));
      }
    }
  }
}

// Sums are 2^-22 of the values: of four times the weights, and a fourth.
template <int kHeadDim, UnitKind kKind>
__device__ void add_classic(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4],
                            const uint8_t* unit, int lane) {
  constexpr int kBits = bits_of_kind(kKind);
  constexpr uint32_t kOffset = 0x8000 | 1 << (kBits - 1);  // minus half of the code range, 2^-24
  const uint8_t* factors = unit + code_plane_bytes(kBits, kHeadDim);
  const Planes<kHeadDim, kBits> codes{unit, lane};
  uint32_t scaled[4] = {p[0], p[1], p[2], p[3]};
  scale_halves(scaled, twice(0x4400), twice(0x3400));
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t low[4], high[4], b[4], minima[4];
    codes.load_values(low, high, group);
    weigh_cells(b, scaled, factors + group * 64, lane);
    if constexpr (has_minimum(kKind))
      weigh_cells(minima, p, factors + kHeadDim / 32 * 64 + group * 64, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float(&sum)[4] = o[2 * group + h];
      uint32_t first[4], second[4];
      numbers_of<kBits>(first, low[2 * h], high[2 * h]);
      numbers_of<kBits>(second, low[2 * h + 1], high[2 * h + 1]);
      value_product(sum, first, second, b);
      if constexpr (has_minimum(kKind)) {
        add_constants(sum, twice(0x0004), twice(0x0004), minima);  // 2^-22
      } else {
        add_constants(sum, twice(kOffset), twice(0x8000 | 16 << (kBits - 1)), b);
      }
    }
  }
}

template <int kHeadDim, int kBits>
__device__ void add_codebook(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4],
                             const uint8_t* unit, const Levels& levels, int lane) {
  const Planes<kHeadDim, kBits> codes{unit, lane};
#pragma unroll
  for (int norm = 0; norm < kHeadDim / 128; ++norm) {
    uint32_t w[4];
    weigh_cells(w, p, unit + code_plane_bytes(kBits, kHeadDim) + norm * 64, lane);
    // The two codes of a byte are cells 16 apart.
    const uint32_t b[4] = {permute(w[0], w[2], 0x5410), permute(w[1], w[3], 0x5410),
                           permute(w[0], w[2], 0x7632), permute(w[1], w[3], 0x7632)};
#pragma unroll
    for (int group = 4 * norm; group < 4 * norm + 4; ++group) {
      uint32_t low[4], high[4];
      codes.load_values(low, high, group);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t first[4], second[4];
        byte_levels(levels, low[2 * h], first);
        byte_levels(levels, low[2 * h + 1], second);
        mma(o[2 * group + h], {first[0], second[0], first[1], second[1]}, b[0], b[1], __half());
        mma(o[2 * group + h], {first[2], second[2], first[3], second[3]}, b[2], b[3], __half());
      }
    }
  }
}

// Sums are 2^-18 of the values.
template <int kHeadDim>
__device__ void add_q8(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4], const uint8_t* unit,
                       int lane) {
  uint32_t scaled[4] = {p[0], p[1], p[2], p[3]};
  scale_halves(scaled, twice(0x5400), twice(0x5400));  // 64: the largest scale of q8_0 is 516
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t b[4];
    weigh_cells(b, scaled, unit + 32 * kHeadDim + group * 64, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float(&sum)[4] = o[2 * group + h];
      uint32_t v[4];
      load_matrices(v, byte_rows(unit, 2 * group + h, lane));
      mma(sum, {v[0] & kEvenBytes, v[1] & kEvenBytes, odd_bytes(v[0]), odd_bytes(v[1])}, b[0], b[1],
          __half());
      mma(sum, {v[2] & kEvenBytes, v[3] & kEvenBytes, odd_bytes(v[2]), odd_bytes(v[3])}, b[2], b[3],
          __half());
      add_constants(sum, twice(0x8080), twice(0x8080), b);  // minus 128 per code
    }
  }
}

template <int kHeadDim>
__device__ void score_unit(UnitKind kind, float (&s)[2][4], const uint8_t* unit, uint8_t* table,
                           const Levels& levels, const Queries& queries, int lane) {
  with_kind(kind, [&]<UnitKind kKind>() {
    constexpr int kBits = bits_of_kind(kKind);
    if constexpr (kKind == UnitKind::q8_0) {
      score_q8<kHeadDim>(s, unit, queries, lane);
    } else if constexpr (family_of(kKind) == UnitFamily::classic) {
      score_classic<kHeadDim, kKind>(s, unit, queries, lane);
    } else if constexpr (family_of(kKind) == UnitFamily::codebook) {
      score_codebook<kHeadDim, kBits>(s, unit, levels, queries, lane);
    } else if constexpr (family_of(kKind) == UnitFamily::channel) {
      score_channels<kHeadDim, kBits>(s, unit, table, queries, lane);
    }
  });
}
template <int kHeadDim>
__device__ void add_unit(UnitKind kind, float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4],
                         const uint8_t* unit, uint8_t* table, const Levels& levels, int lane) {
  with_kind(kind, [&]<UnitKind kKind>() {
    constexpr int kBits = bits_of_kind(kKind);
    if constexpr (kKind == UnitKind::q8_0) {
      add_q8<kHeadDim>(o, p, unit, lane);
    } else if constexpr (family_of(kKind) == UnitFamily::classic) {
      add_classic<kHeadDim, kKind>(o, p, unit, lane);
    } else if constexpr (family_of(kKind) == UnitFamily::codebook) {
      add_codebook<kHeadDim, kBits>(o, p, unit, levels, lane);
    } else if constexpr (family_of(kKind) == UnitFamily::channel) {
      add_channels<kHeadDim, kBits>(o, p, unit, table, lane);
    }
  });
}
// The final factor of a kind's sums.
__device__ inline float sum_unit(UnitKind kind) {
  if (kind == UnitKind::q8_0) return power_of_two(18);
  return family_of(kind) == UnitFamily::classic ? power_of_two(22) : 1.0f;
}

}  // namespace braid::cuda::sealed_attention
