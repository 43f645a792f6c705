// repack_small.cpp -- tiles of the small types (layouts.h), in plain loops.

#include <bit>
#include <cstring>

#include "base/check.h"
#include "gguf/block_layouts.h"
#include "gguf/half.h"
#include "ops/cpu/gemm/repack.h"

namespace braid::cpu {
namespace {

uint32_t word_at(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

struct Format {
  int block_k;
  size_t block_bytes;
  size_t codes_at;  // of the nibbles
};

constexpr Format format_of(Layout layout) {
  switch (layout) {
    case Layout::q4_1:
      return {32, 20, 4};
    case Layout::q5_0:
      return {32, 22, 6};
    case Layout::q5_1:
      return {32, 24, 8};
    case Layout::iq4_xs:
      return {256, 136, 8};
    case Layout::mxfp4:
      return {32, 17, 1};
    case Layout::nvfp4:
      return {64, 36, 4};
    default:  // q4_0, iq4_nl
      return {32, 18, 2};
  }
}

// Four codes of 4 bits: quad 0..7 of the 32 k from element `first` of a block.
uint32_t nibbles(Layout layout, const uint8_t* block, int first, int quad) {
  const uint8_t* q = block + format_of(layout).codes_at + first / 2;
  // A run of 16 bytes has elements 0-15 in its low, 16-31 in its high nibbles; nvfp4 has runs of 8.
  if (layout == Layout::nvfp4) {
    return word_at(q + 8 * (quad / 4) + 4 * (quad % 2)) >> (4 * (quad % 4 / 2)) & 0x0f0f0f0fu;
  }
  return word_at(q + 4 * (quad % 4)) >> (4 * (quad / 4)) & 0x0f0f0f0fu;
}

int iq4_xs_scale(const uint8_t* block, int sub) {
  const int high = block[2] | block[3] << 8;
  return ((block[4 + sub / 2] >> (4 * (sub % 2)) & 15) | (high >> (2 * sub) & 3) << 4) - 32;
}

// The 32 k from element `first` of a block become half `half` of a tile.
void repack_half(Layout layout, const uint8_t* block, int first, int half, int r, W4* tile) {
  if (layout == Layout::mxfp4) {
    tile->d[half][r] =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(e8m0_half_to_f32(block[0])) >> 16);
  } else if (layout == Layout::iq4_xs) {
    std::memcpy(&tile->d[0][r], block, 2);
    reinterpret_cast<int8_t*>(tile->d[1])[16 * half + r] =
        static_cast<int8_t>(iq4_xs_scale(block, first / 32));
  } else {
    std::memcpy(&tile->d[half][r], block, 2);
  }
}
void repack_half(Layout layout, const uint8_t* block, int first, int half, int r, W4Pair* tile) {
  if (layout == Layout::nvfp4) {
    const uint8_t* scales = block + first / 16;
    tile->d[half][r] = f32_to_f16(0.5f * ue4m3_to_f32(scales[0]));
    tile->second[half][r] = f32_to_f16(0.5f * ue4m3_to_f32(scales[1]));
  } else {
    std::memcpy(&tile->d[half][r], block, 2);
    std::memcpy(&tile->second[half][r], block + 2, 2);
  }
}

template <typename Tile>
void repack_4(Layout layout, const uint8_t* block, int first, int half, int r, Tile* tile) {
  repack_half(layout, block, first, half, r, tile);
  for (int quad = 0; quad < 8; quad++) {
    const uint32_t both = word_at(tile->q[quad] + 4 * r) | nibbles(layout, block, first, quad)
                                                               << (4 * half);
    std::memcpy(tile->q[quad] + 4 * r, &both, 4);
  }
}

void repack_5(Layout layout, const uint8_t* block, int r, W5* tile) {
  const bool min = layout == Layout::q5_1;
  std::memcpy(&tile->d[r], block, 2);
  if (min) std::memcpy(&tile->min[r], block + 2, 2);
  const uint32_t fifth = word_at(block + (min ? 4 : 2));
  uint32_t code[8];
  for (int quad = 0; quad < 8; quad++) {
    const uint32_t bits = fifth >> (4 * quad);
    const uint32_t spread =
        (bits & 1) | (bits >> 1 & 1) << 8 | (bits >> 2 & 1) << 16 | (bits >> 3 & 1) << 24;
    code[quad] = nibbles(layout, block, 0, quad) | spread << 4;
  }
  uint32_t line[5];
  join_fives(code, line);
  for (int i = 0; i < 5; i++) std::memcpy(tile->q[i] + 4 * r, &line[i], 4);
}

const W4& tile_4(const std::byte* tiles, int64_t i) {
  return reinterpret_cast<const W4*>(tiles)[i / 64];
}
const W4Pair& tile_pair(const std::byte* tiles, int64_t i) {
  return reinterpret_cast<const W4Pair*>(tiles)[i / 64];
}
const W5& tile_5(const std::byte* tiles, int64_t i) {
  return reinterpret_cast<const W5*>(tiles)[i / 32];
}

}  // namespace

size_t small_group_bytes(Layout layout, int64_t k) {
  if (is_five(layout)) return static_cast<size_t>(k / 32) * sizeof(W5);
  return static_cast<size_t>((k + 63) / 64) * (is_pair(layout) ? sizeof(W4Pair) : sizeof(W4));
}

void repack_small(Layout layout, const std::byte* file, size_t row_bytes, int rows, int64_t k,
                  std::byte* tiles) {
  std::memset(tiles, 0, small_group_bytes(layout, k));
  const Format format = format_of(layout);
  for (int r = 0; r < rows; r++) {
    const auto* row = reinterpret_cast<const uint8_t*>(file) + static_cast<size_t>(r) * row_bytes;
    for (int64_t i = 0; i < k; i += 32) {
      const uint8_t* block = row + static_cast<size_t>(i / format.block_k) * format.block_bytes;
      const int first = static_cast<int>(i % format.block_k), half = static_cast<int>(i / 32 % 2);
      if (is_five(layout)) {
        repack_5(layout, block, r, reinterpret_cast<W5*>(tiles) + i / 32);
      } else if (is_pair(layout)) {
        repack_4(layout, block, first, half, r, reinterpret_cast<W4Pair*>(tiles) + i / 64);
      } else {
        repack_4(layout, block, first, half, r, reinterpret_cast<W4*>(tiles) + i / 64);
      }
    }
  }
}

int small_value(Layout layout, const std::byte* tiles, int64_t i, int r) {
  const int quad = static_cast<int>(i % 32 / 4), at = static_cast<int>(4 * r + i % 4);
  if (is_five(layout)) return code_of_five(tile_5(tiles, i).q, quad, at) - small_offset(layout);
  const int both = is_pair(layout) ? tile_pair(tiles, i).q[quad][at] : tile_4(tiles, i).q[quad][at];
  const int code = i % 64 < 32 ? both & 15 : both >> 4;
  if (is_iq4(layout)) return kIq4Levels[code];
  if (is_fp4(layout)) return kFp4Doubled[code];
  return code - small_offset(layout);
}

float small_factor(Layout layout, const std::byte* tiles, int64_t i, int r) {
  if (is_five(layout)) return f16_to_f32(tile_5(tiles, i).d[r]);
  const int64_t half = i / 32 % 2;
  if (is_pair(layout)) {
    const W4Pair& tile = tile_pair(tiles, i);
    const bool second = layout == Layout::nvfp4 && i % 32 >= 16;
    return f16_to_f32(second ? tile.second[half][r] : tile.d[half][r]);
  }
  const W4& tile = tile_4(tiles, i);
  if (layout == Layout::mxfp4) return bf16_to_f32(tile.d[half][r]);
  if (layout == Layout::iq4_xs) {
    const int scale = reinterpret_cast<const int8_t*>(tile.d[1])[16 * half + r];
    return f16_to_f32(tile.d[0][r]) * static_cast<float>(scale);
  }
  return f16_to_f32(tile.d[half][r]);
}

float small_min(Layout layout, const std::byte* tiles, int64_t i, int r) {
  if (layout == Layout::q5_1) return f16_to_f32(tile_5(tiles, i).min[r]);
  if (layout == Layout::q4_1) return f16_to_f32(tile_pair(tiles, i).second[i / 32 % 2][r]);
  return 0;
}

}  // namespace braid::cpu
