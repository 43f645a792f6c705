// device_math.h -- the activation type, warp and block sums, a few functions.
//
// Activations are f16, which keeps 11 bits (bf16: 8), and into which packed codes convert in fewer
// instructions. Stores saturate at +-65504 instead of becoming infinite. The residual stream, which
// grows with depth, stays f32.
#pragma once

#include <cstdint>
#if defined(BRAID_COUNT_CLAMPS)
#include <vector>
#endif

#include "ops/cuda/gpu.h"
#include "ops/tensor.h"

namespace braid::cuda {

using Act = __half;

__device__ inline unsigned long long gpu_clock_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
inline constexpr DType kActType = DType::f16;
inline constexpr unsigned kFullWarp = 0xffffffffu;

__device__ inline float to_float(Act x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(float x) { return x; }

inline constexpr float kMostAct = 65504.0f;

#if defined(BRAID_COUNT_CLAMPS)
// Counts of clamped numbers (Device::clamped). Each source file has its own counter on the device.
inline std::vector<uint64_t (*)()>& clamp_readers() {
  static std::vector<uint64_t (*)()> readers;
  return readers;
}
namespace {
__device__ unsigned long long clamps_of_file;
[[maybe_unused]] const bool clamps_are_read = [] {
  clamp_readers().push_back([] {
    unsigned long long count = 0;
    cudaMemcpyFromSymbol(&count, clamps_of_file, sizeof(count));
    return static_cast<uint64_t>(count);
  });
  return true;
}();
}  // namespace
__device__ inline void count_clamp(float x) {
  if (fabsf(x) > kMostAct) atomicAdd(&clamps_of_file, 1ull);
}
#else
__device__ inline void count_clamp(float) {}
#endif

// The largest finite value instead of infinity; NaN stays NaN.
__device__ inline Act to_act(float x) {
  count_clamp(x);
  if (x > kMostAct) x = kMostAct;
  if (x < -kMostAct) x = -kMostAct;
  return __float2half_rn(x);
}
// x in the low half.
__device__ __forceinline__ uint32_t pack_act(float x, float y) {
  count_clamp(x);
  count_clamp(y);
  uint32_t bits;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return bits;
}
__device__ inline void store(Act* at, float x) { *at = to_act(x); }
__device__ inline void store(float* at, float x) { *at = x; }

// For a type known at run time; the branch is uniform.
__device__ inline float load_as(const void* data, DType type, int64_t index) {
  return type == DType::f32 ? static_cast<const float*>(data)[index]
                            : to_float(static_cast<const Act*>(data)[index]);
}
__device__ inline void store_as(void* data, DType type, int64_t index, float x) {
  if (type == DType::f32) {
    static_cast<float*>(data)[index] = x;
  } else {
    static_cast<Act*>(data)[index] = to_act(x);
  }
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}
// Of kSums sums over kLanes lanes, number lane * kSums / kLanes, added in the order of warp_sum().
template <int kLanes, int kSums>
__device__ float group_sum(float (&x)[kSums], int lane, unsigned lanes) {
  static_assert(kSums <= kLanes && (kSums & (kSums - 1)) == 0);
  int offset = kLanes / 2;
#pragma unroll
  for (int n = kSums / 2; n > 0; n /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float keep = upper ? x[i + n] : x[i];
      const float give = upper ? x[i] : x[i + n];
      x[i] = keep + __shfl_xor_sync(lanes, give, offset);
    }
    offset /= 2;
  }
#pragma unroll
  for (int left = kLanes / kSums; left > 1; left /= 2) {
    x[0] += __shfl_xor_sync(lanes, x[0], offset);
    offset /= 2;
  }
  return x[0];
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}
// In every thread, in warp order. `scratch` [33] in shared memory can be reused at once.
__device__ inline float block_sum(float x, float* scratch) {
  const int warp = threadIdx.x / 32;
  const int warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[warp] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += scratch[i];
  return sum;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + __expf(-x)); }

template <typename T>
constexpr __host__ __device__ T div_up(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace braid::cuda
