// encode.h -- between encode.cpp (the types of plain rounding) and encode_k.cpp (those that search for
// scales).
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

// Toward zero, as the processor's own conversion: what does not fit an int is INT32_MIN instead of undefined.
inline int to_int(float x) {
  return x > -2147483648.0f && x < 2147483648.0f ? static_cast<int>(x) : INT32_MIN;
}

}  // namespace braid
