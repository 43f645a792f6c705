// half.h -- small floating-point formats of weight files, as integer bit patterns.
// f16 is IEEE binary16, bf16 the upper half of binary32. E8M0 is a power of two (mxfp4 block
// scale). UE4M3 has a 4-bit exponent and a 3-bit mantissa (nvfp4 block scale). Conversions to f16
// and bf16 round to nearest even and keep subnormals in any denormal mode.
#pragma once

#include <bit>
#include <cstdint>

namespace braid {

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t rest = h & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest < 0x0400) {  // subnormal: a multiple of 2^-24
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
}

// |x| >= 65520 becomes infinity; NaN becomes a quiet NaN of the same sign.
inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign |
                               (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

inline float bf16_to_f32(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// 2^(e - 128), half of the scale, because mxfp4 codes are stored doubled.
inline float e8m0_half_to_f32(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

// Bit 7 is ignored; the NaN code 0x7f reads as 0.
inline float ue4m3_to_f32(uint8_t s) {
  const uint32_t exponent = s >> 3 & 15;
  const uint32_t mantissa = s & 7;
  if ((s & 0x7f) == 0x7f) return 0.0f;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
}

// Rounds to nearest even, saturates at 448; 0 for x <= 0 and NaN.
inline uint8_t f32_to_ue4m3(float x) {
  if (!(x > 0.0f)) return 0;
  if (x >= 448.0f) return 0x7e;
  if (x < 0x1p-6f) {  // subnormal: a multiple of 2^-9; adding 2^14 rounds to one
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(x + 0x1p14f) -
                                std::bit_cast<uint32_t>(0x1p14f));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint8_t>(((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3));
}

// As the reference encoder rounds: half up, and 448 from 248 upwards.
inline uint8_t f32_to_ue4m3_reference(float x) {
  if (!(x > 0.0f)) return 0;
  if (x > 448.0f) x = 448.0f;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  int exponent = static_cast<int>(bits >> 23) - 127 + 7;
  if (exponent <= 0) {
    const int steps = static_cast<int>(x * 512.0f + 0.5f);
    return static_cast<uint8_t>(steps > 7 ? 7 : steps);
  }
  if (exponent >= 15) return 0x7e;
  uint32_t mantissa = (bits >> 20 & 7) + (bits >> 19 & 1);
  if (mantissa == 8) {
    mantissa = 0;
    ++exponent;
  }
  return exponent >= 15 ? 0x7e
                        : static_cast<uint8_t>(static_cast<uint32_t>(exponent) << 3 | mantissa);
}

}  // namespace braid
