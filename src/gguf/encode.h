// encode.h -- shared by encode.cpp (plain rounding) and encode_k.cpp (searches for scales).
#pragma once

#include <cstdint>
#include <cstring>

namespace braid {

// One block of 256 elements.
void encode_q4_K(const float* x, uint8_t* b);
void encode_q5_K(const float* x, uint8_t* b);
void encode_q6_K(const float* x, uint8_t* b);

template <typename T>
void store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Rounds to nearest even by shifting the fraction out of the significand; exact for |x| <= 4194303.
inline float round_even(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

// Truncates; out of range gives INT32_MIN, as on x86, instead of undefined behavior.
inline int to_int(float x) {
  return x > -2147483648.0f && x < 2147483648.0f ? static_cast<int>(x) : INT32_MIN;
}

}  // namespace braid
