// sealed_units.cuh -- a unit of a sealed block (ops/kv) as operands of mma.sync, straight from its codes.
//
// Units are in canonical order: [channel][32 cells]. That is the order that ldmatrix wants: a row of an 8 x 8
// matrix of 16-bit elements is 16 bytes of a channel. For V^T, whose rows are channels, a lane gets 32 bits of
// the channel that it is to have. For K, whose rows are cells, ldmatrix transposes: a lane gets 16 bits of one
// channel and the same 16 bits of the next, which are the two numbers of a register, several cells deep.
//
// Codes become f16 by masking alone: code << 4 n as the bits of an f16 is the number code 2^(4 n - 24), exact,
// and tensor cores take such subnormal numbers as any others. All codes of a row of the operand lie at the same
// bits, so the power of two is that of a row of scores, or of a product with a part of the weights. What
// belongs to channels (c4) is multiplied into q, or into what a unit's values add up to; what belongs to rows
// and groups (q8_0, q4_0, tbq4_0) into sums of scores over a group, or into the weights. Offsets of codes
// are products with constants.
//
// Cells of a lane, lane = 4 g + c. Scores s[tile][i], queries 2 c + i % 2:
//   s[0][0..1] cell 2 g    s[0][2..3] cell 2 g + 16    s[1][0..1] cell 2 g + 1    s[1][2..3] cell 2 g + 17
// Weights p[i], a pair of cells of query g:
//   p[0] 4 c, 4 c + 2    p[1] 4 c + 1, 4 c + 3    p[2] 4 c + 16, 4 c + 18    p[3] 4 c + 17, 4 c + 19
// which is what movmatrix makes of the scores (weights_of).
#pragma once

#include <cstdint>

#include "ops/cuda/kv/unit_seal.h"
#include "ops/cuda/primitives/device_math.h"
#include "ops/cuda/primitives/mma.h"

namespace braid::cuda::sealed_attention {

// Kinds that are read so.
constexpr bool reads_codes(UnitKind kind) {
  return kind == UnitKind::c4 || kind == UnitKind::q8_0 || kind == UnitKind::q4_0 || kind == UnitKind::tbq4;
}

__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(low), "r"(high), "r"(selector));
  return y;
}
__device__ inline __half2 half2_of(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ inline uint32_t bits_of(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }
__device__ inline uint32_t times(uint32_t x, uint32_t y) {
  return bits_of(__hmul2(half2_of(x), half2_of(y)));
}
__device__ inline float power_of_two(int e) { return __int_as_float((e + 127) << 23); }
template <typename T>
__device__ const T& at(const uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}

// The same f16 twice.
__host__ __device__ constexpr uint32_t twice(uint32_t bits) { return bits | bits << 16; }

// ---- codes to numbers ----

// Of 32 bits of a nibble plane, `y` 4 or 8 bits further: two codes each.
inline constexpr uint32_t kNibble0 = 0x000f000f, kNibble1 = 0x00f000f0, kNibble2 = 0x0f000f00;
inline constexpr uint32_t kEvenBytes = 0x00ff00ff;

// Levels of the codebook: a table of all pairs of codes, [byte][lane] of two f16, so that every lane of a warp
// finds its own in a bank of its own.
inline constexpr int kLevelBytes = 256 * 32 * 4;
__device__ inline void make_level_table(uint8_t* table) {
  const auto level = [](int code) { return __float2half_rn(codebook_level<4>(code)); };
  for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) {
    const int codes = i / 32;
    reinterpret_cast<__half2*>(table)[i] = __halves2half2(level(codes % 16), level(codes / 16));
  }
}
// A lane's address in the table; its bits below 7 are the lane's, those from 7 on of a pair of codes.
__device__ inline uint32_t level_lane(const uint8_t* table, int lane) {
  return shared_address(table) + 4 * lane;
}
__device__ inline uint32_t load_levels(uint32_t levels, uint32_t codes) {
  uint32_t y;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(y) : "r"(levels + codes));
  return y;
}
// Of nibbles n and n + 4.
__device__ inline void split_levels(uint32_t levels, uint32_t codes, uint32_t (&to)[4]) {
  const uint32_t down5 = codes >> 5;
  to[0] = load_levels(levels, (codes << 7 & 0x780) | (down5 & 0x7800));
  to[1] = load_levels(levels, (codes << 3 & 0x780) | (codes >> 9 & 0x7800));
  to[2] = load_levels(levels, (codes >> 1 & 0x780) | (codes >> 13 & 0x7800));
  to[3] = load_levels(levels, (down5 & 0x780) | (codes >> 17 & 0x7800));
}
// Of nibbles 2 n and 2 n + 1.
__device__ inline void byte_levels(uint32_t levels, uint32_t codes, uint32_t (&to)[4]) {
  to[0] = load_levels(levels, codes << 7 & 0x7f80);
  to[1] = load_levels(levels, codes >> 1 & 0x7f80);
  to[2] = load_levels(levels, codes >> 9 & 0x7f80);
  to[3] = load_levels(levels, codes >> 17 & 0x7f80);
}

// ---- scores ----

// What a warp knows of its eight queries.
struct Queries {
  uint32_t rows;      // address of the f16 rows, and of the matrix row that the lane gives to ldmatrix
  const float* sums;  // [group of 32 channels][8]
  float scale;        // of scores
};

// 32 channels of a nibble plane; K as rows of cells.
struct KeyNibbles {
  uint32_t word[4];
  __device__ void load(const uint8_t* unit, int group, int lane) {
    load_matrices_transposed(word, shared_address(unit) + group * 512 + lane * 16);
  }
};

// The scales and zeros of a unit's channels as they are needed: [product of 16 channels][c] of f16 pairs
// s(2 c, 2 c + 1), s(2 c + 8, 2 c + 9), z of the same; both over 2^(e0 + 14).
template <int kHeadDim>
__device__ void make_key_table(const uint8_t* planes, uint8_t* table, int lane) {
  if (lane >= kHeadDim / 8) return;
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
          __hsub2(half2_of(permute(m[i], 0x64646464, selector)), half2_of(twice(0x6480)));    // 1152
      zeros[i] = bits_of(__hfma2(middle, steps, half2_of(times(scales[i], twice(0xc780)))));  // -7.5
    }
    *reinterpret_cast<uint4*>(table + (lane / 2 * 4 + lane % 2 * 2 + pair) * 16) = {scales[0], scales[1],
                                                                                    zeros[0], zeros[1]};
  }
}

template <int kHeadDim>
__device__ void score_c4(float (&s)[2][4], const uint8_t* unit, uint8_t* table, const Queries& queries,
                         int lane) {
  const uint8_t* planes = unit + 16 * kHeadDim;
  make_key_table<kHeadDim>(planes, table, lane);
  __syncwarp();
  float sum[2][4] = {}, zero[4] = {};
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    KeyNibbles k;
    k.load(unit, group, lane);
    uint32_t q[4];
    load_matrices(q, queries.rows + group * 64);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 channels = at<uint4>(table + ((2 * group + h) * 4 + lane % 4) * 16);
      const uint32_t low = k.word[2 * h], high = k.word[2 * h + 1];
      const uint32_t b0 = times(q[2 * h], channels.x), b1 = times(q[2 * h + 1], channels.y);
      mma(sum[0], {low & kNibble0, low & kNibble1, high & kNibble0, high & kNibble1}, b0, b1, __half());
      mma(sum[1], {low & kNibble2, low >> 4 & kNibble2, high & kNibble2, high >> 4 & kNibble2}, b0, b1,
          __half());
      mma(zero, {channels.z, channels.z, channels.w, channels.w}, q[2 * h], q[2 * h + 1], __half());
    }
  }
  const int e = static_cast<int8_t>(planes[2 * kHeadDim + 2]) + 14;
  const float scale = queries.scale * power_of_two(e);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float z = zero[i] * scale;
    s[0][i] = fmaf(sum[0][i], scale * power_of_two(i < 2 ? 24 : 20), z);
    s[1][i] = fmaf(sum[1][i], scale * power_of_two(16), z);
  }
}

// Factors of the cells of a lane's scores.
__device__ inline void cell_factors(float (&f)[2][2], const uint8_t* plane, int lane) {
  const uint8_t* from = plane + lane / 4 * 4;
  const float2 low = unpack(at<uint32_t>(from), __half()), high = unpack(at<uint32_t>(from + 32), __half());
  f[0][0] = low.x, f[1][0] = low.y, f[0][1] = high.x, f[1][1] = high.y;
}
// Adds a group's sums, each times the factor of its cell and the unit of its row.
__device__ inline void add_group(float (&s)[2][4], const float (&sum)[2][4], const uint8_t* factors,
                                 const float (&units)[2][2], int lane) {
  float f[2][2];
  cell_factors(f, factors, lane);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[tile][i] = fmaf(sum[tile][i], f[tile][i / 2] * units[tile][i / 2], s[tile][i]);
  }
}

template <int kHeadDim>
__device__ void score_q4(float (&s)[2][4], const uint8_t* unit, const Queries& queries, int lane) {
  const float units[2][2] = {{queries.scale * power_of_two(24), queries.scale * power_of_two(20)},
                             {queries.scale * power_of_two(16), queries.scale * power_of_two(16)}};
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    KeyNibbles k;
    k.load(unit, group, lane);
    uint32_t q[4];
    load_matrices(q, queries.rows + group * 64);
    const float2 all = *reinterpret_cast<const float2*>(queries.sums + group * 8 + lane % 4 * 2);
    float sum[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float offset = -8.0f * (i % 2 == 0 ? all.x : all.y);
      sum[0][i] = offset * power_of_two(i < 2 ? -24 : -20);
      sum[1][i] = offset * power_of_two(-16);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t low = k.word[2 * h], high = k.word[2 * h + 1];
      mma(sum[0], {low & kNibble0, low & kNibble1, high & kNibble0, high & kNibble1}, q[2 * h], q[2 * h + 1],
          __half());
      mma(sum[1], {low & kNibble2, low >> 4 & kNibble2, high & kNibble2, high >> 4 & kNibble2}, q[2 * h],
          q[2 * h + 1], __half());
    }
    add_group(s, sum, unit + 16 * kHeadDim + group * 64, units, lane);
  }
}

template <int kHeadDim>
__device__ void score_tbq4(float (&s)[2][4], const uint8_t* unit, uint32_t levels, const Queries& queries,
                           int lane) {
  const float units[2][2] = {{queries.scale, queries.scale}, {queries.scale, queries.scale}};
#pragma unroll
  for (int norm = 0; norm < kHeadDim / 128; ++norm) {
    float sum[2][4] = {};
#pragma unroll
    for (int group = 4 * norm; group < 4 * norm + 4; ++group) {
      KeyNibbles k;
      k.load(unit, group, lane);
      uint32_t q[4];
      load_matrices(q, queries.rows + group * 64);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t low[4], high[4];
        split_levels(levels, k.word[2 * h], low);
        split_levels(levels, k.word[2 * h + 1], high);
        mma(sum[0], {low[0], low[1], high[0], high[1]}, q[2 * h], q[2 * h + 1], __half());
        mma(sum[1], {low[2], low[3], high[2], high[3]}, q[2 * h], q[2 * h + 1], __half());
      }
    }
    add_group(s, sum, unit + 16 * kHeadDim + norm * 64, units, lane);
  }
}

// Codes of a byte each: 16 channels by 32 cells, or 16 cells of them.
__device__ inline uint32_t byte_rows(const uint8_t* unit, int product, int lane) {
  return shared_address(unit) + (product * 16 + lane / 8 % 2 * 8 + lane % 8) * 32 + lane / 16 * 16;
}
__device__ inline uint32_t odd_bytes(uint32_t word) { return word >> 8 & kEvenBytes; }

template <int kHeadDim>
__device__ void score_q8(float (&s)[2][4], const uint8_t* unit, const Queries& queries, int lane) {
  const float one = queries.scale * power_of_two(24);
  const float units[2][2] = {{one, one}, {one, one}};
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t q[4];
    load_matrices(q, queries.rows + group * 64);
    const float2 all = *reinterpret_cast<const float2*>(queries.sums + group * 8 + lane % 4 * 2);
    float sum[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[0][i] = sum[1][i] = -128.0f * power_of_two(-24) * (i % 2 == 0 ? all.x : all.y);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t k[4];
      load_matrices_transposed(k, byte_rows(unit, 2 * group + h, lane));
      mma(sum[0], {k[0] & kEvenBytes, k[2] & kEvenBytes, k[1] & kEvenBytes, k[3] & kEvenBytes}, q[2 * h],
          q[2 * h + 1], __half());
      mma(sum[1], {odd_bytes(k[0]), odd_bytes(k[2]), odd_bytes(k[1]), odd_bytes(k[3])}, q[2 * h],
          q[2 * h + 1], __half());
    }
    add_group(s, sum, unit + 32 * kHeadDim + group * 64, units, lane);
  }
}

// ---- values ----

// Weights as operands.
__device__ inline void weights_of(uint32_t (&p)[4], const float (&s)[2][4]) {
  p[0] = transpose_matrix(pack(s[0][0], s[0][1], __half()));
  p[1] = transpose_matrix(pack(s[1][0], s[1][1], __half()));
  p[2] = transpose_matrix(pack(s[0][2], s[0][3], __half()));
  p[3] = transpose_matrix(pack(s[1][2], s[1][3], __half()));
}
// Times factors of cells, f16 [32].
__device__ inline void weigh_cells(uint32_t (&to)[4], const uint32_t (&p)[4], const uint8_t* factors,
                                   int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 f = at<uint2>(factors + half * 32 + lane % 4 * 8);
    to[2 * half] = times(p[2 * half], permute(f.x, f.y, 0x5410));
    to[2 * half + 1] = times(p[2 * half + 1], permute(f.x, f.y, 0x7632));
  }
}
// The same with factors of the first 16 cells times `first`, the others times `second`.
__device__ inline void weigh_cells(uint32_t (&to)[4], const uint32_t (&p)[4], const uint8_t* factors,
                                   int lane, uint32_t first, uint32_t second) {
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

// [tile of 16 channels][g]: scale and zero of channels g and g + 8; scales times 2^`scale_power`, zeros times
// 2^`zero_power`.
template <int kHeadDim>
__device__ void make_value_table(const uint8_t* planes, uint8_t* table, int scale_power, int zero_power,
                                 int lane) {
  if (lane >= kHeadDim / 8) return;
  const int base = lane / 2 * 16 + lane % 2 * 4;
  const uint32_t head = at<uint32_t>(planes + 2 * kHeadDim);
  const uint32_t exponent = static_cast<uint32_t>(static_cast<int8_t>(head >> 16) + 127 + scale_power) << 23;
  const float step = __half2float(__ushort_as_half(static_cast<uint16_t>(head))) * power_of_two(zero_power);
  const float half_range = -7.5f * power_of_two(zero_power - scale_power);
  const uint32_t s[2] = {at<uint32_t>(planes + base), at<uint32_t>(planes + base + 8)};
  const uint32_t m[2] = {at<uint32_t>(planes + kHeadDim + base) ^ 0x80808080u,
                         at<uint32_t>(planes + kHeadDim + base + 8) ^ 0x80808080u};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float scale[2], zero[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = __uint_as_float(((s[h] >> 8 * i & 0xff) << 19) + exponent);
      const float middle = __uint_as_float(permute(m[h], 0x4b000000, 0x7650 + i)) - 8388736.0f;  // 2^23 + 128
      zero[h] = fmaf(middle, step, half_range * scale[h]);
    }
    *reinterpret_cast<float4*>(table + (lane / 2 * 8 + lane % 2 * 4 + i) * 16) = {scale[0], zero[0], scale[1],
                                                                                  zero[1]};
  }
}

template <int kHeadDim>
__device__ void add_c4(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4], const uint8_t* unit,
                       uint8_t* table, int lane) {
  const uint8_t* planes = unit + 16 * kHeadDim;
  const uint8_t* factors = planes + 2 * kHeadDim + 16;
  // Factors are divided by a power of two, so that weights times the largest of them fit f16 well. Nibbles of
  // the first product are 2^-24 of a code, of the second 2^-20: times 2^8 and 2^4 both sums are 2^-16.
  const unsigned largest =
      __reduce_max_sync(kFullWarp, static_cast<unsigned>(at<uint16_t>(factors + 2 * lane)));
  const int power = min(max(static_cast<int>(largest >> 10) - 15, -7), 14);
  make_value_table<kHeadDim>(planes, table, 16 + power, power, lane);
  uint32_t b[4];
  weigh_cells(b, p, factors, lane, twice(static_cast<uint32_t>(15 + 8 - power) << 10),
              twice(static_cast<uint32_t>(15 + 4 - power) << 10));
  float all[4] = {};
  mma(all, {twice(0x1c00), twice(0x1c00), twice(0x1c00), twice(0x1c00)}, b[0], b[1], __half());  // 1 / 256
  mma(all, {twice(0x2c00), twice(0x2c00), twice(0x2c00), twice(0x2c00)}, b[2], b[3], __half());  // 1 / 16
  __syncwarp();
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t v[4];
    load_matrices(v, shared_address(unit) + group * 512 + lane * 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int tile = 2 * group + h;
      const uint32_t low = v[2 * h], high = v[2 * h + 1], low8 = low >> 8, high8 = high >> 8;
      float sum[4] = {};
      mma(sum, {low & kNibble0, high & kNibble0, low8 & kNibble0, high8 & kNibble0}, b[0], b[1], __half());
      mma(sum, {low & kNibble1, high & kNibble1, low8 & kNibble1, high8 & kNibble1}, b[2], b[3], __half());
      const float4 channels = at<float4>(table + (tile * 8 + lane / 4) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        o[tile][i] = fmaf(channels.x, sum[i], fmaf(channels.y, all[i], o[tile][i]));
        o[tile][i + 2] = fmaf(channels.z, sum[i + 2], fmaf(channels.w, all[i], o[tile][i + 2]));
      }
    }
  }
}

// Sums are 2^-21 of what they stand for.
template <int kHeadDim>
__device__ void add_q4(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4], const uint8_t* unit, int lane) {
  uint32_t scaled[4] = {p[0], p[1], p[2], p[3]};
  scale_halves(scaled, twice(0x4800), twice(0x3800));  // 8, 1 / 2
#pragma unroll
  for (int group = 0; group < kHeadDim / 32; ++group) {
    uint32_t b[4], v[4];
    weigh_cells(b, scaled, unit + 16 * kHeadDim + group * 64, lane);
    load_matrices(v, shared_address(unit) + group * 512 + lane * 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float(&sum)[4] = o[2 * group + h];
      const uint32_t low = v[2 * h], high = v[2 * h + 1], low8 = low >> 8, high8 = high >> 8;
      mma(sum, {low & kNibble0, high & kNibble0, low8 & kNibble0, high8 & kNibble0}, b[0], b[1], __half());
      mma(sum, {low & kNibble1, high & kNibble1, low8 & kNibble1, high8 & kNibble1}, b[2], b[3], __half());
      // Minus 8 for each code.
      mma(sum, {twice(0x8008), twice(0x8008), twice(0x8008), twice(0x8008)}, b[0], b[1], __half());
      mma(sum, {twice(0x8080), twice(0x8080), twice(0x8080), twice(0x8080)}, b[2], b[3], __half());
    }
  }
}

template <int kHeadDim>
__device__ void add_tbq4(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4], const uint8_t* unit,
                         uint32_t levels, int lane) {
#pragma unroll
  for (int norm = 0; norm < kHeadDim / 128; ++norm) {
    uint32_t w[4];
    weigh_cells(w, p, unit + 16 * kHeadDim + norm * 64, lane);
    // A pair of codes in a byte is of cells 16 apart.
    const uint32_t b[4] = {permute(w[0], w[2], 0x5410), permute(w[1], w[3], 0x5410),
                           permute(w[0], w[2], 0x7632), permute(w[1], w[3], 0x7632)};
#pragma unroll
    for (int group = 4 * norm; group < 4 * norm + 4; ++group) {
      uint32_t v[4];
      load_matrices(v, shared_address(unit) + group * 512 + lane * 16);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t low[4], high[4];
        byte_levels(levels, v[2 * h], low);
        byte_levels(levels, v[2 * h + 1], high);
        mma(o[2 * group + h], {low[0], high[0], low[1], high[1]}, b[0], b[1], __half());
        mma(o[2 * group + h], {low[2], high[2], low[3], high[3]}, b[2], b[3], __half());
      }
    }
  }
}

// Sums are 2^-18 of what they stand for.
template <int kHeadDim>
__device__ void add_q8(float (&o)[kHeadDim / 16][4], const uint32_t (&p)[4], const uint8_t* unit, int lane) {
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
      // Minus 128 for each code.
      mma(sum, {twice(0x8080), twice(0x8080), twice(0x8080), twice(0x8080)}, b[0], b[1], __half());
      mma(sum, {twice(0x8080), twice(0x8080), twice(0x8080), twice(0x8080)}, b[2], b[3], __half());
    }
  }
}

// What sums of a kind are to be multiplied by at the end.
__device__ inline float sum_unit(UnitKind kind) {
  return kind == UnitKind::q8_0 ? power_of_two(18) : kind == UnitKind::q4_0 ? power_of_two(21) : 1.0f;
}

}  // namespace braid::cuda::sealed_attention
