#include "ops/kv/rotation.h"

#include <cmath>

#include "ops/kv/format_numbers.h"

namespace braid::kv {

namespace {

constexpr RotationSigns kSigns;

void flip_signs(float* x, const uint32_t (&signs)[4]) {
  for (int32_t i = 0; i < kRotationGroup; ++i) {
    if (signs[i / 32] >> i % 32 & 1) x[i] = -x[i];
  }
}

void hadamard(float* x) {
  for (int32_t h = 1; h < kRotationGroup; h *= 2) {
    for (int32_t j = 0; j < kRotationGroup; ++j) {
      if (j & h) continue;
      const float a = x[j];
      const float b = x[j + h];
      x[j] = a + b;
      x[j + h] = a - b;
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kRotationGroup)));
  for (int32_t j = 0; j < kRotationGroup; ++j) x[j] *= scale;
}

}  // namespace

void rotate_group(float* x) {
  flip_signs(x, kSigns.before);
  hadamard(x);
  flip_signs(x, kSigns.after);
}

void unrotate_group(float* x) {
  flip_signs(x, kSigns.after);
  hadamard(x);
  flip_signs(x, kSigns.before);
}

}  // namespace braid::kv
