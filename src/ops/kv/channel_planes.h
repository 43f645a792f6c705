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
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

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

// Ties to even.
inline uint8_t affine_code(float y, float middle, float s, int most_code) {
  const auto most = static_cast<float>(most_code);
  return static_cast<uint8_t>(
      std::clamp(std::nearbyint((y - middle) / s + 0.5f * most), 0.0f, most));
}

// rows [32][head_dim]. `shares`: parts of a channel's range to try for its scale, descending; the
// first with the least squared error is kept.
template <int bits>
void encode_channels(const float* rows, int32_t head_dim, std::span<const float> shares,
                     uint8_t* codes, const ChannelPlanes<uint8_t>& planes) {
  constexpr int kMost = (1 << bits) - 1;
  std::vector<float> middles(static_cast<size_t>(head_dim));
  std::vector<float> halves(static_cast<size_t>(head_dim));
  float farthest = 0;
  float widest = 0;
  for (int32_t d = 0; d < head_dim; ++d) {
    float low = rows[d];
    float high = rows[d];
    for (int32_t t = 1; t < kBlockTokens; ++t) {
      low = std::min(low, rows[int64_t{t} * head_dim + d]);
      high = std::max(high, rows[int64_t{t} * head_dim + d]);
    }
    const auto i = static_cast<size_t>(d);
    middles[i] = (low + high) * 0.5f;
    halves[i] = (high - low) * 0.5f;
    farthest = std::max(farthest, std::fabs(middles[i]));
    widest = std::max(widest, halves[i]);
  }
  const auto step_of = [](float share, float half) {
    return std::max(2.0f * share * half / static_cast<float>(kMost), kLeastScale);
  };
  const uint16_t zstep_bits = f32_to_f16(farthest / kMostMiddle);
  const float zstep = f16_to_f32(zstep_bits);
  const int e0 = grid_base(step_of(shares.front(), widest));
  store_head(planes.head, zstep_bits, e0);
  for (int32_t d = 0; d < head_dim; ++d) {
    const auto i = static_cast<size_t>(d);
    const float m = zstep == 0.0f
                        ? 0.0f
                        : std::clamp(std::nearbyint(middles[i] / zstep), -kMostMiddle, kMostMiddle);
    planes.m[d] = static_cast<uint8_t>(static_cast<int8_t>(m));
    float least = INFINITY;
    uint8_t best[kBlockTokens] = {};
    for (const float share : shares) {
      const uint8_t byte = grid_byte(step_of(share, halves[i]), e0);
      const float s = grid_scale(byte, e0);
      const float z = m * zstep - s * (0.5f * static_cast<float>(kMost));
      uint8_t tried[kBlockTokens];
      float error = 0;
      for (int32_t t = 0; t < kBlockTokens; ++t) {
        const float y = rows[int64_t{t} * head_dim + d];
        tried[t] = affine_code(y, m * zstep, s, kMost);
        const float off = y - (s * static_cast<float>(tried[t]) + z);
        error += off * off;
      }
      if (!(error < least)) continue;
      least = error;
      planes.s[d] = byte;
      std::copy_n(tried, kBlockTokens, best);
    }
    put_codes<bits>(codes, head_dim, d, best);
  }
}

template <int bits>
void decode_channels(const uint8_t* codes, const ChannelPlanes<const uint8_t>& planes,
                     int32_t head_dim, float* rows) {
  for (int32_t d = 0; d < head_dim; ++d) {
    const ChannelScale c = planes.scale(d, (1 << bits) - 1);
    uint8_t channel[kBlockTokens];
    get_codes<bits>(codes, head_dim, d, channel);
    for (int32_t t = 0; t < kBlockTokens; ++t)
      rows[int64_t{t} * head_dim + d] = c.s * static_cast<float>(channel[t]) + c.z;
  }
}

}  // namespace braid::kv
