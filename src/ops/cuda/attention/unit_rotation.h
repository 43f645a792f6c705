// unit_rotation.h -- the rotation R of ops/kv/rotation.h on a unit's 32 rows, by a thread block.
#pragma once

#include "ops/cuda/attention/unit_kind.h"
#include "ops/kv/format_numbers.h"

namespace braid::cuda {

inline constexpr float kRotationScale = static_cast<float>(0.08838834764831845);  // 1 / sqrt(128)

// Signs of elements 32 * word .. + 31 of 128, before or after the transform.
BRAID_BOTH inline uint32_t rotation_signs(int word, bool after) {
  constexpr kv::RotationSigns kSigns;
  constexpr uint32_t kBefore[4] = {kSigns.before[0], kSigns.before[1], kSigns.before[2],
                                   kSigns.before[3]};
  constexpr uint32_t kAfter[4] = {kSigns.after[0], kSigns.after[1], kSigns.after[2],
                                  kSigns.after[3]};
  const uint32_t before = word == 0   ? kBefore[0]
                          : word == 1 ? kBefore[1]
                          : word == 2 ? kBefore[2]
                                      : kBefore[3];
  const uint32_t behind = word == 0   ? kAfter[0]
                          : word == 1 ? kAfter[1]
                          : word == 2 ? kAfter[2]
                                      : kAfter[3];
  return after ? behind : before;
}
BRAID_BOTH inline float signed_by(uint32_t signs, int bit, float x) {
  return (signs >> bit & 1) != 0 ? -x : x;
}
BRAID_BOTH inline float with_sign(float x, int d, bool after) {
  return signed_by(rotation_signs(d / 32 % 4, after), d % 32, x);
}

// Butterflies of elements 1, 2, .. kCount / 2 apart, in that order.
template <int kCount>
BRAID_BOTH void sums_and_differences(float (&x)[kCount]) {
  BRAID_UNROLL
  for (int h = 1; h < kCount; h *= 2) {
    BRAID_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i], b = x[i + h];
      x[i] = add(a, b);
      x[i + h] = sub(a, b);
    }
  }
}

// By 128 values of all rows; `back`: the inverse. Two passes in registers: 16 neighbors, then 8
// values 16 apart. Threads of a warp have different rows, in different banks.
template <typename Block>
BRAID_BOTH void rotate_rows(Block& block, UnitRows& rows, int width, bool back) {
  block.each([&](int thread) {
    for (int task = thread; task < kBlockTokens * width / 16; task += Block::kSize) {
      const int first = task / kBlockTokens * 16;
      float* row = rows.at[task % kBlockTokens] + first;
      const uint32_t signs = rotation_signs(first / 32 % 4, back) >> first % 32;
      float x[16];
      BRAID_UNROLL
      for (int i = 0; i < 16; ++i) x[i] = signed_by(signs, i, row[i]);
      sums_and_differences(x);
      BRAID_UNROLL
      for (int i = 0; i < 16; ++i) row[i] = x[i];
    }
  });
  block.each([&](int thread) {
    for (int task = thread; task < kBlockTokens * width / 8; task += Block::kSize) {
      const int column = task / kBlockTokens, own = column % 16;
      float* row = rows.at[task % kBlockTokens] + column / 16 * 128 + own;
      float x[8];
      BRAID_UNROLL
      for (int i = 0; i < 8; ++i) x[i] = row[16 * i];
      sums_and_differences(x);
      BRAID_UNROLL
      for (int i = 0; i < 8; ++i)
        row[16 * i] =
            signed_by(rotation_signs(i / 2, !back), own + i % 2 * 16, mul(x[i], kRotationScale));
    }
  });
}

}  // namespace braid::cuda
