// head_rows.h -- a row's heads on their way to attention: norm and rotation of queries and keys.
//
// Two kernels do this: rope.cu for any row, attention_decode.cu for rows that attend in the same launch. Both
// must give the same bytes, so every rounding is written out. A warp owns a head, a lane 8 consecutive
// elements of it; lanes beyond the head's width hold zeros and take part.
#pragma once

#include "ops/cuda/primitives/device_math.h"

namespace braid::cuda {

inline constexpr int kMaxHeadDim = 256;  // widest head

// A lane's part of a norm's weight, and of a row's rotation: none (1, 0) beyond the rotated dims.
struct HeadWeight {
  float weight[8];
};
struct HeadRotation {
  float cosine[8], sine[8];
};

// x = x / sqrt(mean(x^2) + eps) * weight
__device__ inline void norm_head(float (&x)[8], const HeadWeight& norm, float eps, int head_dim) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(x[i], x[i], sum);
  const float inverse = rsqrtf(fmaf(warp_sum(sum), 1.0f / static_cast<float>(head_dim), eps));
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(x[i], __fmul_rn(inverse, norm.weight[i]));
}

// Turns pairs of dims i, i + half; `other` is the other element of a pair, `low` whether x is the first.
__device__ inline float rotated(float x, float other, float cosine, float sine, bool low) {
  const float part = __fmul_rn(other, sine);
  return fmaf(x, cosine, low ? -part : part);
}

}  // namespace braid::cuda
