// head_rows.h -- norm and rotation of queries and keys, for rope.cu and attention_decode.cu.
//
// Both must give the same bytes, so every rounding is explicit. A warp owns a head, a lane 8
// consecutive elements. Lanes beyond the head's width hold zeros and participate.
#pragma once

#include "ops/cuda/device_math.h"

namespace braid::cuda {

inline constexpr int kMaxHeadDim = 256;

// A lane's part of a norm's weight, and of a rotation: (1, 0) beyond the rotated dims.
struct HeadWeight {
  float weight[8];
};
struct HeadRotation {
  float cosine[8], sine[8];
};

__device__ inline void norm_head(float (&x)[8], const HeadWeight& norm, float eps, int head_dim) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(x[i], x[i], sum);
  const float inverse = rsqrtf(fmaf(warp_sum(sum), 1.0f / static_cast<float>(head_dim), eps));
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(x[i], __fmul_rn(inverse, norm.weight[i]));
}

// Of the pair of dims i, i + half: `other` is the other element, `low` whether x is the first.
__device__ inline float rotated(float x, float other, float cosine, float sine, bool low) {
  const float part = __fmul_rn(other, sine);
  return fmaf(x, cosine, low ? -part : part);
}

// For 16 * lanes rotated dims: a lane's pairs are consecutive, their partners in one other lane.
__device__ inline HeadRotation load_rotation(const float* row, int lanes) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  HeadRotation r = {{1, 1, 1, 1, 1, 1, 1, 1}, {}};
  if (lane < 2 * lanes) {
    const auto* from =
        reinterpret_cast<const float4*>(row) + 4 * (lane < lanes ? lane : lane - lanes);
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
