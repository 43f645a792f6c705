// layouts.h -- memory layouts of weights and activations for the product kernels.
//
// A row group is 16 consecutive output rows; its tiles follow each other over k. A quad is 4
// consecutive k: byte 4 r + j of 64 belongs to row r, element j. So one load holds whole quads, and
// every lane is one output row. Layouts permute the file's bits and widen scales, without further
// rounding. Rows beyond n and k beyond the matrix are zero with scale 0.
// Included by sources for one instruction set: no inline functions of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace braid::cpu {

inline constexpr int kGroupRows = 16;
inline constexpr int kBlockK = 256;  // block of activations: 8 sub-blocks of 32
inline constexpr int kSubBlocks = kBlockK / 32;

enum class Layout : uint8_t {
  w8,    // Q8_0
  w4k,   // Q4_K
  w5k,   // Q5_K
  w6k,   // Q6_K
  f32,   // [k][16] f32
  f16,   // [k][16] f16
  bf16,  // [k / 2][16][2] bf16
  // The small types: 4 or 5 bits, a factor per 32 or 16 k.
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  iq4_nl,
  iq4_xs,
  mxfp4,
  nvfp4,
  raw,  // all other types: the 16 rows as in the file
};
inline constexpr int kLayouts = 16;

// 64 k; code + 128, so the integer sum of a sub-block starts at -128 x (sum of activation codes).
struct alignas(64) W8 {
  uint16_t d[2][16];  // f16, of each 32 k
  uint8_t q[16][64];  // [quad]
};
// 256 k in 8 groups of 32. Low nibble: group 2 j, high nibble: group 2 j + 1.
struct alignas(64) W4K {
  uint16_t d[16], dmin[16];
  uint8_t scale[8][16], min[8][16];
  uint8_t q[4][8][64];  // [pair of groups][quad]
};
// W5K and W6K put the codes of a group's last quads into the spare bits of its bytes, so most codes
// take one AND to unpack. In W5K a group of 32 is 5 lines: line i has code i in bits 0..4 and
// spare[i] in bits 5..7.
//   code 5 = spare[0] << 2 | spare[3] >> 1
//   code 6 = spare[1] << 2 | spare[4] >> 1
//   code 7 = spare[2] << 2 | (spare[3] & 1) << 1 | (spare[4] & 1)
struct alignas(64) W5K {
  uint16_t d[16], dmin[16];
  uint8_t scale[8][16], min[8][16];
  uint8_t q[8][5][64];  // [group]
};
// 256 k in 16 groups of 16; codes 0..63 (value + 32). A group is 3 lines: line i has code i in bits
// 0..5 and spare[i] in bits 6..7. Code 3 = spare[0] | spare[1] << 2 | spare[2] << 4.
struct alignas(64) W6K {
  uint16_t d[16], pad[16];
  int8_t scale[8][16][2];  // [32 k][row][group of 16]
  uint8_t q[16][3][64];    // [group]
};
// The small types. A code stands for an integer (by a table or offset), kept as integer + offset.

// 64 k. Low nibble: the first 32, high nibble: the second 32.
struct alignas(64) W4 {
  // For each 32 k. q4_0, iq4_nl: f16. mxfp4: the upper half of an f32. iq4_xs: factor = d[0] (f16)
  // * scale, where d[1] has the scales as int8 [2][16].
  uint16_t d[2][16];
  uint8_t q[8][64];  // [quad]
};
// As W4 with two f16 factors. q4_1: d and minimum; nvfp4: for the two 16 k of each 32.
struct alignas(64) W4Pair {
  uint16_t d[2][16], second[2][16];
  uint8_t q[8][64];
};
// 32 k; lines as in W5K. q5_0 has no minimum (zeros).
struct alignas(64) W5 {
  uint16_t d[16], min[16];  // f16
  uint8_t q[5][64];
};
static_assert(sizeof(W4) == 576 && sizeof(W4Pair) == 640 && sizeof(W5) == 384);

#define BRAID_SMALL_LAYOUTS(X) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(iq4_nl) X(iq4_xs) X(mxfp4) X(nvfp4)

static constexpr bool is_small(Layout l) { return l >= Layout::q4_0 && l <= Layout::nvfp4; }
static constexpr bool is_iq4(Layout l) { return l == Layout::iq4_nl || l == Layout::iq4_xs; }
static constexpr bool is_fp4(Layout l) { return l == Layout::mxfp4 || l == Layout::nvfp4; }
static constexpr bool is_pair(Layout l) { return l == Layout::q4_1 || l == Layout::nvfp4; }
static constexpr bool is_five(Layout l) { return l == Layout::q5_0 || l == Layout::q5_1; }
static constexpr bool has_min(Layout l) { return l == Layout::q4_1 || l == Layout::q5_1; }
static constexpr int small_offset(Layout l) {
  return is_iq4(l) ? 128 : is_fp4(l) ? 12 : l == Layout::q4_0 ? 8 : l == Layout::q5_0 ? 16 : 0;
}
// The byte of each 4-bit code, for is_iq4 and is_fp4.
inline constexpr uint8_t kIq4Bytes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kFp4Bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                          12, 11, 10, 9,  8,  6,  4,  0};

template <Layout L, bool kPair = is_pair(L), bool kFive = is_five(L)>
struct SmallTileOf {
  using type = W4;
};
template <Layout L>
struct SmallTileOf<L, true, false> {
  using type = W4Pair;
};
template <Layout L>
struct SmallTileOf<L, false, true> {
  using type = W5;
};
template <Layout L>
using SmallTile = typename SmallTileOf<L>::type;
template <Layout L>
constexpr int kTileSubs = is_five(L) ? 1 : 2;  // sub-blocks of 32 k in a tile

static_assert(sizeof(W8) == 1088 && sizeof(W4K) == 2368 && sizeof(W5K) == 2880 &&
              sizeof(W6K) == 3392);

// Activations: rows of x quantized per 32 k to int8 (d = max / 127) or int16 (d = max / 32512), in
// blocks of 256 k: [k / 256][row] of the parts below. k beyond the matrix is zero with d 0. Only
// the parts that the kernels need are filled.
struct alignas(32) ActHead {
  float d[kSubBlocks];
  float dsum[kSubBlocks];         // d * (sum of codes)
  int32_t sum[kSubBlocks];        // sums of codes per 32 k
  int16_t sum16[2 * kSubBlocks];  // per 16 k (int8 only)
  // Start of the 16-bit sums of W6K (AVX2, int8): -32 times the sums over elements 0 1 and over
  // elements 2 3 of the quads of each 16 k.
  int16_t start6[2 * kSubBlocks][2];
};
struct alignas(32) ActCodes {
  int8_t q[kBlockK];
};
// code = 16 high + low, low -8..7, high -8..8, so 16-bit sums of bytes times a plane hold 8 quads.
struct alignas(32) ActNibbles {
  int8_t high[kBlockK];
  int8_t low[kBlockK];
};
// int16 codes, elements 0 2 1 3 of each quad: even and odd bytes of a weight quad become two pairs.
struct alignas(32) ActWide {
  int16_t q[kBlockK];
};

enum : uint8_t { kNeedsCodes = 1, kNeedsNibbles = 2, kNeedsWide = 4, kNeedsFloat = 8 };

struct ActView {
  int64_t rows = 0;  // stride between blocks of 256 k
  const ActHead* head = nullptr;
  const ActCodes* codes = nullptr;
  const ActNibbles* nibbles = nullptr;
  const ActWide* wide = nullptr;
  const float* x = nullptr;  // unquantized rows
  int64_t x_stride = 0;
};

}  // namespace braid::cpu
