// format_numbers.h -- constants of the formats: rotation signs, codebooks, parts of channel ranges.
// Plain arrays in structs, so that kernels can read them as constants.
#pragma once

#include <cstdint>

namespace braid::kv {

// Bit i of 128, least significant first: element i changes sign before/after the Hadamard matrix.
struct RotationSigns {
  uint32_t before[4] = {0xe46a0359, 0x42f85949, 0xa4c63bbb, 0x49f250a9};
  uint32_t after[4] = {0x16acee90, 0x3f628fdc, 0xb7a5357a, 0xbea56562};
};

// Levels above zero and the limits between them, mirrored below zero; one limit is zero.
template <int bits>
struct Codebook;
template <>
struct Codebook<4> {
  float levels[8] = {0.011353f, 0.034311f, 0.058069f, 0.083317f,
                     0.111065f, 0.143047f, 0.182907f, 0.241556f};
  float limits[7] = {0.022832f, 0.046190f, 0.070693f, 0.097191f, 0.127056f, 0.162977f, 0.212232f};
};
template <>
struct Codebook<3> {
  float levels[4] = {0.021460f, 0.065717f, 0.117832f, 0.190685f};
  float limits[3] = {0.043589f, 0.091775f, 0.154259f};
};
inline constexpr float kTinyNorm = 1e-10f;

inline constexpr int kChannelShares = 9;
struct ChannelShares {
  float part[kChannelShares] = {1.00f, 0.97f, 0.94f, 0.91f, 0.88f, 0.85f, 0.82f, 0.79f, 0.76f};
};
inline constexpr float kLeastScale = 1e-5f;
inline constexpr int kLeastExponent = -14;  // of normal f16
inline constexpr float kMostMiddle = 127.0f;
inline constexpr float kRootBias = 1e-6f;  // added to the root mean square of a row of V

}  // namespace braid::kv
