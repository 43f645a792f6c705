// channel_planes.h -- a scale and a zero for each channel of a unit, in a byte each.
//
// Channel d has scale s and middle m * zstep. Code c of 0 .. L stands for s * c + z, z = m * zstep
// - s * L / 2. Products with s are exact in f32 (five bits by eight), even if fused.
// Scales are on the grid (1 + i / 16) 2^e, i = 0 .. 15, stored as the byte (e - e0) << 4 | i. The
// f16 of a scale is (byte << 6) + ((e0 + 15) << 10). e0 of a unit is 15 below its largest exponent,
// limited to -14 .. 0 so that all scales are normal f16; other scales are clamped.
// Planes: s u8 [head_dim], m i8 [head_dim], head 16 bytes: f16 zstep, i8 e0, zeros.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "gguf/half.h"
#include "ops/kv/code_planes.h"
#include "ops/kv/format_numbers.h"

namespace braid::kv {

inline constexpr int64_t kHeadBytes = 16;

// Exponent and sixteenths of a positive scale, ties up.
inline int32_t grid_index(float s) {
  return static_cast<int32_t>((std::bit_cast<uint32_t>(s) + (1u << 18)) >> 19);
}
inline int grid_exponent(float s) { return (grid_index(s) >> 4) - 127; }
inline int grid_base(float largest) {
  return std::clamp(grid_exponent(largest) - 15, kLeastExponent, 0);
}
inline uint8_t grid_byte(float s, int e0) {
  return static_cast<uint8_t>(std::clamp(grid_index(s) - ((e0 + 127) << 4), 0, 255));
}
inline float grid_scale(uint8_t byte, int e0) {
  return f16_to_f32(static_cast<uint16_t>((byte << 6) + ((e0 + 15) << 10)));
}

inline int load_base(const uint8_t* head) { return static_cast<int8_t>(head[2]); }
inline void store_head(uint8_t* head, uint16_t zstep, int e0) {
  std::memset(head, 0, kHeadBytes);
  store_u16(head, zstep);
  head[2] = static_cast<uint8_t>(static_cast<int8_t>(e0));
}

struct ChannelScale {
  float s = 0;
  float z = 0;
};

template <typename Byte>
struct ChannelPlanes {
  Byte* s;
  Byte* m;
  Byte* head;

  ChannelScale scale(int32_t channel, int most_code) const {
    const float step = grid_scale(s[channel], load_base(head));
    const float middle = static_cast<float>(static_cast<int8_t>(m[channel])) * load_half(head);
    return {step, middle - step * (0.5f * static_cast<float>(most_code))};
  }
};
constexpr int64_t channel_plane_bytes(int32_t head_dim) {
  return 2 * int64_t{head_dim} + kHeadBytes;
}
template <typename Byte>
ChannelPlanes<Byte> channel_planes(Byte* at, int32_t head_dim) {
  return {at, at + head_dim, at + 2 * int64_t{head_dim}};
}

}  // namespace braid::kv
