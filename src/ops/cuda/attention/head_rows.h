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

// A row's rotation from the step's table where half of the rotated dims are a multiple of 8, `lanes` times: a
// lane's pairs lie together, and their other elements in another lane.
__device__ inline HeadRotation load_rotation(const float* row, int lanes) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  HeadRotation r = {{1, 1, 1, 1, 1, 1, 1, 1}, {}};
  if (lane < 2 * lanes) {
    const auto* from = reinterpret_cast<const float4*>(row) + 4 * (lane < lanes ? lane : lane - lanes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 two = from[i];
      r.cosine[2 * i] = two.x, r.sine[2 * i] = two.y;
      r.cosine[2 * i + 1] = two.z, r.sine[2 * i + 1] = two.w;
    }
  }
  return r;
}
__device__ inline void rotate_head(float (&x)[8], const HeadRotation& rotation, int lanes) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool low = lane < lanes;
  const int from = low ? lane + lanes : lane - lanes;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float other = __shfl_sync(kFullWarp, x[i], from & 31);
    if (lane < 2 * lanes) x[i] = rotated(x[i], other, rotation.cosine[i], rotation.sine[i], low);
  }
}

}  // namespace braid::cuda
