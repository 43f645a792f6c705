// unit_rotation.h -- the rotation R of ops/kv/rotation.h on the 32 rows of a unit, by a block of threads.
#pragma once

#include "ops/cuda/kv/unit_form.h"
#include "ops/kv/format_numbers.h"

namespace braid::cuda {

inline constexpr float kRotationScale = static_cast<float>(0.08838834764831845);  // 1 / sqrt(128)

// Element d of a row, its sign changed where the bits say so.
BRAID_BOTH inline float with_sign(float x, int d, bool after) {
  constexpr kv::RotationSigns kSigns;
  constexpr uint32_t kBefore[4] = {kSigns.before[0], kSigns.before[1], kSigns.before[2], kSigns.before[3]};
  constexpr uint32_t kAfter[4] = {kSigns.after[0], kSigns.after[1], kSigns.after[2], kSigns.after[3]};
  const int word = d / 32 % 4;
  const uint32_t before = word == 0   ? kBefore[0]
                          : word == 1 ? kBefore[1]
                          : word == 2 ? kBefore[2]
                                      : kBefore[3];
  const uint32_t behind = word == 0 ? kAfter[0] : word == 1 ? kAfter[1] : word == 2 ? kAfter[2] : kAfter[3];
  return ((after ? behind : before) >> d % 32 & 1) != 0 ? -x : x;
}

// Each 128 values of all rows; `back`: the inverse.
template <typename Block>
BRAID_BOTH void rotate_rows(Block& block, UnitRows& rows, int width, bool back) {
  const int all = kBlockTokens * width;
  block.each([&](int thread) {
    for (int i = thread; i < all; i += Block::kSize) {
      float& x = rows.at[i / width][i % width];
      x = with_sign(x, i % width, back);
    }
  });
  for (int h = 1; h < 128; h *= 2) {
    block.each([&](int thread) {
      for (int i = thread; i < all / 2; i += Block::kSize) {
        float* row = rows.at[i / (width / 2)];
        const int pair = i % (width / 2);
        const int j = pair / h * 2 * h + pair % h;
        const float a = row[j], b = row[j + h];
        row[j] = add(a, b);
        row[j + h] = sub(a, b);
      }
    });
  }
  block.each([&](int thread) {
    for (int i = thread; i < all; i += Block::kSize) {
      float& x = rows.at[i / width][i % width];
      x = with_sign(mul(x, kRotationScale), i % width, !back);
    }
  });
}

}  // namespace braid::cuda
