// code_planes.h -- codes and factors of a unit in canonical order.
//
// Codes: [channel][32 cells], so that one vector has a channel of all cells. Codes of 3 and 5 bits
// are two planes: all bits but the highest, then the highest. In a plane of b bits a channel takes
// 4 b bytes:
//   8 bits  byte t is cell t
//   4 bits  byte j: cell j in the low nibble, cell j + 16 in the high one
//   2 bits  byte j: cells j, j + 8, j + 16, j + 24 from the lowest bits up
//   1 bit   bit t of 32, least significant first
// Factors of rows: f16 [group][32 cells].
#pragma once

#include <cstdint>
#include <cstring>

#include "gguf/half.h"
#include "ops/batch.h"

namespace braid::kv {

static_assert(kBlockTokens == 32);

inline uint16_t load_u16(const uint8_t* at) {
  uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
inline void store_u16(uint8_t* at, uint16_t value) { std::memcpy(at, &value, sizeof value); }
inline float load_half(const uint8_t* at) { return f16_to_f32(load_u16(at)); }

// Infinities become the largest finite numbers.
inline uint16_t finite_half(uint16_t bits) { return (bits & 0x7fff) == 0x7c00 ? bits - 1 : bits; }
inline void store_half(uint8_t* at, float value) { store_u16(at, finite_half(f32_to_f16(value))); }

template <int bits>
inline constexpr int kLowBits = bits == 8   ? 8
                                : bits >= 4 ? 4
                                            : 2;

constexpr int64_t code_bytes(int bits, int32_t head_dim) { return int64_t{4} * bits * head_dim; }

template <int width>
void put_plane(uint8_t* channel, const uint8_t* codes, int shift) {
  constexpr int kPerByte = 8 / width;
  constexpr int kBytes = 4 * width;
  constexpr int kMask = (1 << width) - 1;
  if constexpr (width == 1) {
    for (int t = 0; t < kBlockTokens; ++t) {
      const int bit = codes[t] >> shift & 1;
      channel[t / 8] = static_cast<uint8_t>(t % 8 == 0 ? bit : channel[t / 8] | bit << t % 8);
    }
  } else {
    for (int j = 0; j < kBytes; ++j) {
      int byte = 0;
      for (int i = 0; i < kPerByte; ++i)
        byte |= (codes[j + i * kBytes] >> shift & kMask) << i * width;
      channel[j] = static_cast<uint8_t>(byte);
    }
  }
}

template <int width>
void add_plane(const uint8_t* channel, uint8_t* codes, int shift) {
  constexpr int kBytes = 4 * width;
  constexpr int kMask = (1 << width) - 1;
  for (int t = 0; t < kBlockTokens; ++t) {
    const int part = width == 1 ? channel[t / 8] >> t % 8 & 1
                                : channel[t % kBytes] >> t / kBytes * width & kMask;
    codes[t] = static_cast<uint8_t>(codes[t] | part << shift);
  }
}

template <int bits>
void put_codes(uint8_t* planes, int32_t head_dim, int32_t channel, const uint8_t* codes) {
  constexpr int kLow = kLowBits<bits>;
  put_plane<kLow>(planes + int64_t{4} * kLow * channel, codes, 0);
  if constexpr (bits > kLow) {
    uint8_t* high = planes + code_bytes(kLow, head_dim);
    put_plane<1>(high + int64_t{4} * channel, codes, kLow);
  }
}

template <int bits>
void get_codes(const uint8_t* planes, int32_t head_dim, int32_t channel, uint8_t* codes) {
  constexpr int kLow = kLowBits<bits>;
  std::memset(codes, 0, kBlockTokens);
  add_plane<kLow>(planes + int64_t{4} * kLow * channel, codes, 0);
  if constexpr (bits > kLow) {
    const uint8_t* high = planes + code_bytes(kLow, head_dim);
    add_plane<1>(high + int64_t{4} * channel, codes, kLow);
  }
}

inline constexpr int64_t kFactorBytes = 2 * kBlockTokens;

}  // namespace braid::kv
