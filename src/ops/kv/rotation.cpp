#include "ops/kv/rotation.h"

#include <array>
#include <cmath>

namespace braid::kv {

namespace {

// Bit i of 128, least significant first, is set where element i changes its sign.
using Signs = std::array<uint32_t, 4>;
constexpr Signs kBefore = {0xe46a0359, 0x42f85949, 0xa4c63bbb, 0x49f250a9};
constexpr Signs kAfter = {0x16acee90, 0x3f628fdc, 0xb7a5357a, 0xbea56562};

void flip_signs(float* x, const Signs& signs) {
  for (int32_t i = 0; i < kRotationGroup; ++i) {
    if (signs[static_cast<size_t>(i / 32)] >> i % 32 & 1) x[i] = -x[i];
  }
}

}  // namespace

void hadamard(float* x, int32_t size) {
  for (int32_t h = 1; h < size; h *= 2) {
    for (int32_t j = 0; j < size; ++j) {
      if (j & h) continue;
      const float a = x[j];
      const float b = x[j + h];
      x[j] = a + b;
      x[j + h] = a - b;
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  for (int32_t j = 0; j < size; ++j) x[j] *= scale;
}

void rotate_group(float* x) {
  flip_signs(x, kBefore);
  hadamard(x, kRotationGroup);
  flip_signs(x, kAfter);
}

void unrotate_group(float* x) {
  flip_signs(x, kAfter);
  hadamard(x, kRotationGroup);
  flip_signs(x, kBefore);
}

}  // namespace braid::kv
