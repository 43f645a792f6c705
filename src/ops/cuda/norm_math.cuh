// norm_math.cuh -- the norm's arithmetic in one order, for norm.cu and gemm_skinny_x.cuh: the same
// bytes.
//
// A row is kNormThreads chains: chain c adds the squares of the float4 c, c + kNormThreads, ... in
// this order. The chains of 32 neighbors are added by shuffles, these sums in ascending order.
#pragma once

#include "ops/cuda/device_math.h"

namespace braid::cuda {

inline constexpr int kNormThreads = 512;
inline constexpr int kNormWarps = kNormThreads / 32;

// Explicitly fused, so the compiler has no choice.
__device__ inline float add_squares(float sum, const float4& v) {
  return sum + (fmaf(v.x, v.x, v.y * v.y) + fmaf(v.z, v.z, v.w * v.w));
}
// sums [kNormWarps], 16-byte aligned. No exact division or root, as every product waits for this.
__device__ inline float inverse_of_sums(const float* sums, int width, float eps) {
  static_assert(kNormWarps == 16);
  const auto* four = reinterpret_cast<const float4*>(sums);
  const float4 a = four[0], b = four[1], c = four[2], d = four[3];
  const float sum = ((a.x + b.x) + (c.x + d.x)) + ((a.y + b.y) + (c.y + d.y)) +
                    (((a.z + b.z) + (c.z + d.z)) + ((a.w + b.w) + (c.w + d.w)));
  return rsqrtf(__fdividef(sum, static_cast<float>(width)) + eps);
}
__device__ inline float4 normed(const float4& v, float inverse, const float4& weight) {
  return {v.x * inverse * weight.x, v.y * inverse * weight.y, v.z * inverse * weight.z,
          v.w * inverse * weight.w};
}
__device__ inline uint2 acts_of(const float4& v) {
  const Act out[4] = {to_act(v.x), to_act(v.y), to_act(v.z), to_act(v.w)};
  return *reinterpret_cast<const uint2*>(out);
}

}  // namespace braid::cuda
