// ref_formats.h -- number formats of files and caches. (Interim: falls back to plain conversions until gguf/
// has them.)
#pragma once

#if __has_include("gguf/blocks.h")
#include "gguf/blocks.h"
#else
#include <cstring>

#include "base/check.h"
#include "gguf/types.h"
namespace braid {
inline void decode_row(GgmlType type, const void* src, float* dst, int64_t n) {
  BRAID_CHECK(type == GgmlType::F32);
  std::memcpy(dst, src, static_cast<size_t>(n) * 4);
}
}  // namespace braid
#endif
#if __has_include("gguf/half.h")
#include "gguf/half.h"
#else
#include <bit>
#include <cmath>
#include <cstdint>
namespace braid {
inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float f16_to_f32(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float magnitude =
      exponent == 0 ? std::ldexp(float(mantissa), -24) : std::ldexp(float(1024 + mantissa), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}
inline uint16_t f32_to_f16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float a = std::fabs(x);
  if (!(a < 65520.0f)) return sign | 0x7C00;
  if (a < std::ldexp(1.0f, -14)) return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(a, 24)));
  int e;
  std::frexp(a, &e);
  const int m = static_cast<int>(std::nearbyint(std::ldexp(a, 11 - e)));  // 1024..2048
  return static_cast<uint16_t>(sign + ((e + 14) << 10) + (m - 1024));
}
}  // namespace braid
#endif
