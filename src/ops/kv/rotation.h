// rotation.h -- orthonormal rotations that spread outlier channels, and the sum whose order formats fix.
#pragma once

#include <cstdint>

namespace braid::kv {

inline constexpr int32_t kRotationGroup = 128;

// In place, one group: s2 * H(s1 * x), and its inverse. H is the Hadamard matrix in Sylvester's order over
// sqrt(128), applied by stages h = 1, 2, .. 64: (x[j], x[j + h]) becomes their sum and difference; then
// scaled.
void rotate_group(float* x);
void unrotate_group(float* x);

// In place, the same H of `size` values (a power of two), without signs; its own inverse.
void hadamard(float* x, int32_t size);

// The sum of n values, n a multiple of 32: 32 sums over every 32nd value in ascending order, then p[i] += p[i
// + h] for h = 16, 8, .. 1. A warp and a vector do the same.
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
