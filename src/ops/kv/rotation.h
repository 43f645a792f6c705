// rotation.h -- an orthonormal rotation that spreads outlier channels, and the sum of fixed order.
#pragma once

#include <cstdint>

namespace braid::kv {

inline constexpr int32_t kRotationGroup = 128;

// In place, one group: s2 * H(s1 * x), and its inverse. H is the Hadamard matrix in Sylvester's
// order over sqrt(128), in stages h = 1, 2, .. 64: (x[j], x[j + h]) becomes sum and difference.
void rotate_group(float* x);
void unrotate_group(float* x);

// Sum of n values, n a multiple of 32, as a warp or vector does it: 32 sums over every 32nd value
// in ascending order, then p[i] += p[i + h] for h = 16, 8, .. 1.
template <typename Value>
float ordered_sum(int32_t n, Value value) {
  float partial[32] = {};
  for (int32_t i = 0; i < n; ++i) partial[i % 32] += value(i);
  for (int32_t h = 16; h > 0; h /= 2) {
    for (int32_t i = 0; i < h; ++i) partial[i] += partial[i + h];
  }
  return partial[0];
}

}  // namespace braid::kv
